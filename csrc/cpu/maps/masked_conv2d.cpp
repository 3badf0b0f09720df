// SPDX-License-Identifier: MIT
#include "../../host/map_geometry.h"
#include "../common/host.h"

#define DETOPS_KERNELS "../maps/masked_conv2d.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kProductsPerThread = 1 << 16;

// Returns the indices of the pixels where a mask is set.
std::vector<int32_t> active_pixels(const bool* mask, int64_t size) {
  std::vector<int32_t> pixels;
  for (int64_t i = 0; i < size; ++i) {
    if (mask[i]) pixels.push_back(static_cast<int32_t>(i));
  }
  return pixels;
}

}  // namespace

void masked_conv2d_forward(const Tensor& features, const Tensor& mask, const Tensor& weight,
                           const std::optional<Tensor>& bias, IntArrayRef stride,
                           IntArrayRef padding, Tensor& output) {
  const ScalarType type = features.scalar_type();
  const ConvGeometry g(features, mask, weight, stride, padding);
  const Tensor maps = features.contiguous(), active = positive(mask);
  const Tensor weights = wide(weight, type), biases = wide(bias, type);
  const int64_t size = g.output_height * g.output_width;
  output.zero_();
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto kernel = DETOPS_IN_USE(convolve_pixels<T>);
    const int64_t tile = DETOPS_IN_USE(kConvTile<A>);
    const A* bias_data = biases.defined() ? elements<A>(biases) : nullptr;
    const int64_t grain = grain_for(kProductsPerThread, g.taps * g.outputs * tile);
    for (int64_t n = 0; n < g.images; ++n) {
      const auto pixels = active_pixels(active.const_data_ptr<bool>() + n * size, size);
      const int64_t count = static_cast<int64_t>(pixels.size());
      const T* from = elements<T>(maps) + n * g.channels * g.height * g.width;
      T* to = mutable_elements<T>(output) + n * g.outputs * size;
      parallel_for(divide_up(count, tile), grain, [&](int64_t begin, int64_t end) {
        Buffer<A> columns(g.taps * tile);
        for (int64_t i = begin * tile; i < std::min(end * tile, count); i += tile) {
          kernel(g, from, elements<A>(weights), bias_data, pixels.data() + i,
                 std::min(tile, count - i), columns.data(), to);
        }
      });
    }
  });
}

}  // namespace detops::cpu
