// SPDX-License-Identifier: MIT
#pragma once

#include "../math/deform.h"
#include "../tensor.h"

namespace detops {

// Sizes of a convolution. The arguments have been checked; the last two sizes of `output_like` are
// those of the output.
struct ConvGeometry : MapSizes {
  int64_t outputs, kernel_height, kernel_width, output_height, output_width;
  int64_t stride_y, stride_x, padding_y, padding_x;
  int64_t taps;  // weights per output channel

  ConvGeometry(const Tensor& input, const Tensor& output_like, const Tensor& weight,
               IntArrayRef stride, IntArrayRef padding)
      : MapSizes(input),
        outputs(weight.size(0)),
        kernel_height(weight.size(2)),
        kernel_width(weight.size(3)),
        output_height(output_like.size(-2)),
        output_width(output_like.size(-1)),
        stride_y(stride[0]),
        stride_x(stride[1]),
        padding_y(padding[0]),
        padding_x(padding[1]),
        taps(weight.size(1) * points()) {}

  // constexpr, so device code can call it.
  constexpr int64_t points() const { return kernel_height * kernel_width; }
  constexpr int64_t positions() const { return output_height * output_width; }
};

struct DeformGeometry : ConvGeometry {
  int64_t groups, offset_groups, dilation_y, dilation_x;
  bool edge_gradient;

  DeformGeometry(const Tensor& input, const Tensor& offset, const Tensor& weight,
                 IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                 bool edge_gradient = true)
      : ConvGeometry(input, offset, weight, stride, padding),
        groups(channels / weight.size(1)),
        offset_groups(offset.size(1) / (2 * points())),
        dilation_y(dilation[0]),
        dilation_x(dilation[1]),
        edge_gradient(edge_gradient) {}

  constexpr int64_t group_channels() const { return channels / groups; }
  constexpr int64_t group_outputs() const { return outputs / groups; }
};

// Checks that all levels are inside the positions [0, count) and that their areas sum to `count`.
// For CPU tensors only: kernels clamp values that are on a device.
inline void check_levels(const char* op, const Tensor& spatial_shapes,
                         const Tensor& level_start_index, int64_t count) {
  const Tensor shapes = spatial_shapes.contiguous(), starts = level_start_index.contiguous();
  const int64_t *size = shapes.const_data_ptr<int64_t>(), *start = starts.const_data_ptr<int64_t>();
  int64_t covered = 0;
  for (int64_t i = 0; i < shapes.size(0); ++i) {
    const math::Level level{size[2 * i], size[2 * i + 1], start[i]};
    check(math::is_within(level, count), "detops.", op, ": level ", i, " of ", level.height, " x ",
          level.width, " from position ", level.start, " on must lie within value's ", count,
          " positions");
    covered += level.height * level.width;
  }
  check(covered == count, "detops.", op, ": the levels must have as many positions as value (",
        count, "), got ", covered);
}

}  // namespace detops
