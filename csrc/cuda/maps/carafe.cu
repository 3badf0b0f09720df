// SPDX-License-Identifier: MIT
#include "../../host/map_geometry.h"

#include "../common/vector.cuh"

namespace detops::cuda {

void carafe_forward(const Tensor& features, const Tensor& masks, int64_t kernel_size,
                    int64_t group_size, int64_t scale_factor, Tensor& output) {
  const ScalarType type = features.scalar_type();
  const Reassembly g(features, kernel_size, group_size, scale_factor);
  const Tensor maps = features.contiguous(), weights = wide(masks, type);
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    const scalar_t* feature = elements(maps);
    const A* weight = elements(weights);
    scalar_t* to = elements(output);
    // One thread per output pixel and channel.
    for_each(output.numel(), [=] __device__(int64_t i) {
      const int64_t radius = g.radius(), size = g.output_size();
      const int64_t plane = i / size, pixel = i % size;
      const int64_t y = pixel / g.output_width() / g.scale, x = pixel % g.output_width() / g.scale;
      const scalar_t* from = feature + plane * g.size();
      const A* mask = weight + plane / g.group_channels() * g.taps() * size + pixel;
      A sum = 0;
      for (int64_t v = y - radius; v <= y + radius; ++v) {
        for (int64_t u = x - radius; u <= x + radius; ++u, mask += size) {
          if (v < 0 || v >= g.height || u < 0 || u >= g.width) continue;
          sum = multiply_add(*mask, A(from[v * g.width + u]), sum);
        }
      }
      to[i] = scalar_t(sum);
    });
  });
}

void carafe_backward(const Tensor& grad, const Tensor& features, const Tensor& masks,
                     int64_t kernel_size, int64_t group_size, int64_t scale_factor,
                     bool features_wanted, bool masks_wanted, Tensor& to_features,
                     Tensor& to_masks) {
  const ScalarType type = features.scalar_type(), wider = compute_type(type);
  const Reassembly g(features, kernel_size, group_size, scale_factor);
  // Everything in the accumulation type.
  const Tensor maps = wide(features), weights = wide(masks, type), grads = wide(grad, type);
  DETOPS_WIDE_SWITCH(wider, [&] {
    using A = scalar_t;
    const A *feature = elements(maps), *weight = elements(weights), *upstream = elements(grads);
    A *to = elements(to_features), *to_mask = elements(to_masks);
    // One thread per input pixel and channel: sums over the output pixels that read it.
    const auto feature_gradient = [=] __device__(int64_t i) {
      const int64_t radius = g.radius(), size = g.output_size();
      const int64_t plane = i / g.size(), y = i % g.size() / g.width, x = i % g.width;
      const A* mask = weight + plane / g.group_channels() * g.taps() * size;
      A sum = 0;
      for (int64_t tap = 0; tap < g.taps(); ++tap) {
        const int64_t v = y - tap / g.kernel + radius, u = x - tap % g.kernel + radius;
        if (v < 0 || v >= g.height || u < 0 || u >= g.width) continue;
        for (int64_t phase = 0; phase < g.scale * g.scale; ++phase) {
          const int64_t pixel =
              (v * g.scale + phase / g.scale) * g.output_width() + u * g.scale + phase % g.scale;
          sum = multiply_add(mask[tap * size + pixel], upstream[plane * size + pixel], sum);
        }
      }
      to[i] = sum;
    };
    // One thread per element of the masks: sums over the channels of its group.
    const auto mask_gradient = [=] __device__(int64_t i) {
      const int64_t size = g.output_size(), channels = g.group_channels();
      const int64_t group = i / size / g.taps(), tap = i / size % g.taps(), pixel = i % size;
      const int64_t v = pixel / g.output_width() / g.scale + tap / g.kernel - g.radius();
      const int64_t u = pixel % g.output_width() / g.scale + tap % g.kernel - g.radius();
      A sum = 0;
      if (v >= 0 && v < g.height && u >= 0 && u < g.width) {
        const A* from = feature + group * channels * g.size() + v * g.width + u;
        const A* grad_channel = upstream + group * channels * size + pixel;
        for (int64_t c = 0; c < channels; ++c) {
          sum = multiply_add(grad_channel[c * size], from[c * g.size()], sum);
        }
      }
      to_mask[i] = sum;
    };
    if (features_wanted && to_features.numel() > 0) for_each(to_features.numel(), feature_gradient);
    if (masks_wanted && to_masks.numel() > 0) for_each(to_masks.numel(), mask_gradient);
  });
}

}  // namespace detops::cuda
