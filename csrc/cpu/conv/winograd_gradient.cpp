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

// Adds the products of a block of tiles to the sums of all planes, or sets these. `gradients` are
// [planes, outputs, tiles], `values` [planes, tiles, channels].
void add_products(const TileBlock& block, const Tensor& gradients, const Tensor& values,
                  const Tensor& sums, bool set) {
  for (const PlaneGroup& group : kPlaneGroups) {
    const int64_t begin = block.begin(group), rows = block.end(group) - begin;
    const Tensor sum = sums.narrow(0, group.first, group.count);
    const Tensor left = gradients.narrow(0, group.first, group.count).narrow(2, begin, rows);
    const Tensor right = values.narrow(0, group.first, group.count).narrow(1, begin, rows);
    if (!set && rows > 0) {
      baddbmm_out(sum, sum, left, right);
    } else if (rows > 0) {
      bmm_out(sum, left, right);
    } else if (set) {
      sum.zero_();
    }
  }
}

template <typename T>
void backward_weight(const ConvSizes& s, const Tensor& grad, const Tensor& input,
                     const Tensor& to_weight) {
  const WinogradTiles tiles(s);
  const int64_t all = s.images * tiles.of_image(), most = std::min(all, kTiles);
  const int64_t value_row = winograd_stride(s.channels), grad_row = winograd_stride(s.outputs);
  const Tensor values = empty({kWinogradPlanes, most, value_row}, grad.options());
  const Tensor gradients = empty({kWinogradPlanes, most, grad_row}, grad.options());
  const Tensor sums = empty({kWinogradPlanes, s.outputs, s.channels}, grad.options());
  const std::vector<T> zeros(std::max(s.channels, s.outputs));
  const T *pixels = input.const_data_ptr<T>(), *grads = grad.const_data_ptr<T>();
  T *value = values.mutable_data_ptr<T>(), *gradient = gradients.mutable_data_ptr<T>();
  const auto transform_inputs = DETOPS_IN_USE(winograd_inputs<T>);
  const auto transform_gradients = DETOPS_IN_USE(winograd_gradients<T>);
  for (int64_t first = 0; first < all; first += most) {
    const int64_t count = std::min(most, all - first);
    const TileBlock block(tiles, first, count);
    const int64_t value_plane = count * value_row, grad_plane = count * grad_row;
    parallel_for(0, count, 8, [&](int64_t begin, int64_t end) {
      transform_inputs(s, block, pixels, begin, end, zeros.data(), value, value_plane);
      transform_gradients(s, block, grads, begin, end, zeros.data(), gradient, grad_plane);
    });
    add_products(
        block, gradients.as_strided({kWinogradPlanes, s.outputs, count}, {grad_plane, 1, grad_row}),
        values.as_strided({kWinogradPlanes, count, s.channels}, {value_plane, value_row, 1}), sums,
        first == 0);
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
