// SPDX-License-Identifier: MIT
#include "../../host/map_geometry.h"

#include "../common/vector.cuh"

namespace detops::cuda {

// One thread per output element.
void masked_conv2d_forward(const Tensor& features, const Tensor& mask, const Tensor& weight,
                           const std::optional<Tensor>& bias, IntArrayRef stride,
                           IntArrayRef padding, Tensor& output) {
  const ScalarType type = features.scalar_type();
  const ConvGeometry g(features, mask, weight, stride, padding);
  const Tensor maps = features.contiguous(), active = positive(mask);
  const Tensor all_weights = wide(weight, type), biases = wide(bias, type);
  const bool* is_active = elements(active);
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    const scalar_t* feature = elements(maps);
    const A *weights = elements(all_weights), *bias_data = elements(biases);
    scalar_t* to = elements(output);
    for_each(output.numel(), [=] __device__(int64_t i) {
      const int64_t size = g.positions();
      const int64_t pixel = i % size, o = i / size % g.outputs, n = i / size / g.outputs;
      if (!is_active[n * size + pixel]) {
        to[i] = scalar_t(0);
        return;
      }
      const int64_t top = pixel / g.output_width * g.stride_y - g.padding_y;
      const int64_t left = pixel % g.output_width * g.stride_x - g.padding_x;
      const A* tap = weights + o * g.taps;
      A sum = bias_data == nullptr ? A(0) : bias_data[o];
      for (int64_t c = 0; c < g.channels; ++c) {
        const scalar_t* plane = feature + (n * g.channels + c) * g.height * g.width;
        for (int64_t y = top; y < top + g.kernel_height; ++y) {
          for (int64_t x = left; x < left + g.kernel_width; ++x, ++tap) {
            if (y < 0 || y >= g.height || x < 0 || x >= g.width) continue;
            sum = multiply_add(*tap, A(plane[y * g.width + x]), sum);
          }
        }
      }
      to[i] = scalar_t(sum);
    });
  });
}

}  // namespace detops::cuda
