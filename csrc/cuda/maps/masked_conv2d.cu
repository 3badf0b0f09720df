// SPDX-License-Identifier: MIT
#include "../../maps/maps.h"

#include "../common/vector.cuh"

namespace detops::cuda {
namespace {

// A thread per element of the output.
template <typename T, typename A>
__global__ void masked_conv2d_kernel(ConvGeometry g, const T* features, const bool* mask,
                                     const A* weights, const A* bias, T* output) {
  const int64_t size = g.output_height * g.output_width;
  DETOPS_FOR_EACH(i, g.images * g.outputs * size) {
    const int64_t pixel = i % size, o = i / size % g.outputs, n = i / size / g.outputs;
    if (!mask[n * size + pixel]) {
      output[i] = T(0);
      continue;
    }
    const int64_t top = pixel / g.output_width * g.stride_y - g.padding_y;
    const int64_t left = pixel % g.output_width * g.stride_x - g.padding_x;
    const A* weight = weights + o * g.taps;
    A sum = bias == nullptr ? A(0) : bias[o];
    for (int64_t c = 0; c < g.channels; ++c) {
      const T* plane = features + (n * g.channels + c) * g.height * g.width;
      for (int64_t ky = 0; ky < g.kernel_height; ++ky) {
        const int64_t y = top + ky;
        for (int64_t kx = 0; kx < g.kernel_width; ++kx, ++weight) {
          const int64_t x = left + kx;
          if (y < 0 || y >= g.height || x < 0 || x >= g.width) continue;
          sum = multiply_add(*weight, A(plane[y * g.width + x]), sum);
        }
      }
    }
    output[i] = T(sum);
  }
}

}  // namespace

void masked_conv2d_forward(const Tensor& features, const Tensor& mask, const Tensor& weight,
                           const std::optional<Tensor>& bias, IntArrayRef stride,
                           IntArrayRef padding, Tensor& output) {
  const ScalarType type = features.scalar_type();
  const ConvGeometry g(features, mask, weight, stride, padding);
  const Tensor maps = features.contiguous(), above = positive(mask);
  const Tensor weights = wide(weight, type), biases = wide(bias, type);
  DETOPS_FLOAT_SWITCH(type, [&] {
    launch(masked_conv2d_kernel<scalar_t, accumulate_t<scalar_t>>, blocks_for(output.numel()), g,
           maps, above, weights, biases, output);
  });
}

}  // namespace detops::cuda
