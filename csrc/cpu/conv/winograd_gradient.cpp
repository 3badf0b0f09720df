// SPDX-License-Identifier: MIT
#include <algorithm>
#include <vector>

#include "../../ops.h"
#include "../../products.h"
#include "../common/buffer.h"
#include "conv.h"

#define DETOPS_KERNELS "../conv/winograd_gradient.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// So many tiles at a time: what they are at the points stays in a cache that cores share, and the
// order of sums is that of any number of threads.
constexpr int64_t kTiles = 512;

// Adds the products of a block of tiles to the sums at their points, or sets these.
void add_products(const WinogradTiles& tiles, const Tensor& gradients, const Tensor& values,
                  const Tensor& sums, bool set) {
  // Points that are not neighbours among those of the sums cannot be one batch.
  const bool whole_rows = tiles.points_x == kWinogradPoints;
  const int64_t batch = whole_rows ? tiles.planes() : tiles.points_x;
  for (int64_t first = 0; first < tiles.planes(); first += batch) {
    const Tensor sum = sums.narrow(0, first / tiles.points_x * kWinogradPoints, batch);
    const Tensor left = gradients.narrow(0, first, batch), right = values.narrow(0, first, batch);
    if (set) {
      bmm_out(sum, left, right);
    } else {
      baddbmm_out(sum, sum, left, right);
    }
  }
}

template <typename T>
void backward_weight(const ConvSizes& s, const Tensor& grad, const Tensor& input,
                     const Tensor& to_weight) {
  const std::vector<WinogradTiles> sizes = winograd_tiles_of(s);
  const int64_t value_row = winograd_stride(s.channels), grad_row = winograd_stride(s.outputs);
  int64_t most = 0;
  for (const WinogradTiles& tiles : sizes) {
    most = std::max(most, std::min(kTiles, s.images * tiles.down * tiles.across));
  }
  const Tensor values = empty({kWinogradPlanes, most, value_row}, grad.options());
  const Tensor gradients = empty({kWinogradPlanes, most, grad_row}, grad.options());
  const Tensor sums = empty({kWinogradPlanes, s.outputs, s.channels}, grad.options());
  const std::vector<T> zeros(std::max(s.channels, s.outputs));
  const T *pixels = input.const_data_ptr<T>(), *grads = grad.const_data_ptr<T>();
  T *value = values.mutable_data_ptr<T>(), *gradient = gradients.mutable_data_ptr<T>();
  const auto transform_inputs = DETOPS_IN_USE(winograd_inputs<T>);
  const auto transform_gradients = DETOPS_IN_USE(winograd_gradients<T>);
  // Only tiles of all points set all sums.
  bool set = sizes.front().planes() == kWinogradPlanes;
  if (!set) sums.zero_();
  for (const WinogradTiles& tiles : sizes) {
    const int64_t all = s.images * tiles.down * tiles.across;
    for (int64_t first = 0; first < all; first += most) {
      const int64_t count = std::min(most, all - first);
      const int64_t value_plane = count * value_row, grad_plane = count * grad_row;
      parallel_for(0, count, 8, [&](int64_t begin, int64_t end) {
        transform_inputs(s, tiles, pixels, first + begin, end - begin, zeros.data(),
                         value + begin * value_row, value_plane);
        transform_gradients(s, tiles, grads, first + begin, end - begin, zeros.data(),
                            gradient + begin * grad_row, grad_plane);
      });
      add_products(
          tiles,
          gradients.as_strided({tiles.planes(), s.outputs, count}, {grad_plane, 1, grad_row}),
          values.as_strided({tiles.planes(), count, s.channels}, {value_plane, value_row, 1}), sums,
          set);
      set = false;
    }
  }
  const int64_t plane = s.outputs * s.channels;
  const T* sum = sums.const_data_ptr<T>();
  T* kernels = to_weight.mutable_data_ptr<T>();
  const auto transform_sums = DETOPS_IN_USE(winograd_kernels<T>);
  parallel_for(0, s.outputs, 4, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      transform_sums(sum + o * s.channels, plane, s.channels, kernels + o * 9 * s.channels);
    }
  });
}

}  // namespace

void winograd_conv2d_backward_weight(const Tensor& grad, const Tensor& input, IntArrayRef padding,
                                     Tensor& to_weight) {
  constexpr MemoryFormat kLast = MemoryFormat::ChannelsLast;
  if (grad.numel() == 0 || input.numel() == 0) {
    to_weight.zero_();
    return;
  }
  ConvSizes s{};
  s.images = input.size(0), s.channels = input.size(1);
  s.height = input.size(2), s.width = input.size(3);
  s.outputs = grad.size(1), s.output_height = grad.size(2), s.output_width = grad.size(3);
  s.padding_y = padding[0], s.padding_x = padding[1];
  const ScalarType type = to_weight.scalar_type();
  const Tensor gradients = as_type(grad.contiguous(kLast), type);
  const Tensor map = as_type(input.contiguous(kLast), type);
  const bool in_place = to_weight.is_contiguous(kLast);
  const Tensor kernels =
      in_place ? to_weight : empty(to_weight.sizes(), to_weight.options(), kLast);
  DETOPS_WIDE_SWITCH(type, [&] { backward_weight<scalar_t>(s, gradients, map, kernels); });
  if (!in_place) to_weight.copy_(kernels);
}

}  // namespace detops::cpu
