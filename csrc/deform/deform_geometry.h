// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <vector>

#include "../tensor.h"

namespace detops {

// The sizes that a deformable convolution works with, of arguments that have been checked.
struct DeformGeometry {
  int64_t images, channels, height, width;
  int64_t outputs, kernel_height, kernel_width, output_height, output_width;
  int64_t groups, offset_groups;
  int64_t stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
  bool edge_gradient;

  DeformGeometry(const Tensor& input, const Tensor& offset, const Tensor& weight,
                 IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                 bool edge_gradient = true)
      : images(input.size(0)),
        channels(input.size(1)),
        height(input.size(2)),
        width(input.size(3)),
        outputs(weight.size(0)),
        kernel_height(weight.size(2)),
        kernel_width(weight.size(3)),
        output_height(offset.size(2)),
        output_width(offset.size(3)),
        groups(channels / weight.size(1)),
        offset_groups(offset.size(1) / (2 * kernel_height * kernel_width)),
        stride_y(stride[0]),
        stride_x(stride[1]),
        padding_y(padding[0]),
        padding_x(padding[1]),
        dilation_y(dilation[0]),
        dilation_x(dilation[1]),
        edge_gradient(edge_gradient) {}

  // constexpr: for devices too.
  constexpr int64_t points() const { return kernel_height * kernel_width; }
  constexpr int64_t positions() const { return output_height * output_width; }
  constexpr int64_t group_channels() const { return channels / groups; }
  constexpr int64_t group_outputs() const { return outputs / groups; }
};

}  // namespace detops
