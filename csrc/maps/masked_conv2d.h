// SPDX-License-Identifier: MIT
#pragma once

#include "../ops.h"

namespace detops {

// The sizes that a masked convolution works with, of arguments that have been checked.
struct ConvGeometry {
  int64_t images, channels, height, width;
  int64_t outputs, kernel_height, kernel_width, output_height, output_width;
  int64_t stride_y, stride_x, padding_y, padding_x;
  int64_t taps;  // of an output channel

  ConvGeometry(const Tensor& features, const Tensor& mask, const Tensor& weight, IntArrayRef stride,
               IntArrayRef padding)
      : images(features.size(0)),
        channels(features.size(1)),
        height(features.size(2)),
        width(features.size(3)),
        outputs(weight.size(0)),
        kernel_height(weight.size(2)),
        kernel_width(weight.size(3)),
        output_height(mask.size(1)),
        output_width(mask.size(2)),
        stride_y(stride[0]),
        stride_x(stride[1]),
        padding_y(padding[0]),
        padding_x(padding[1]),
        taps(channels * kernel_height * kernel_width) {}
};

// mask > 0 as bool: of any dtype that the contract takes.
inline Tensor positive(const Tensor& mask) {
  const ScalarType type = mask.scalar_type();
  // PyTorch compares no wider unsigned integers; of them, all but 0 are above it.
  if (is_discrete(type) && !is_integer(type)) return as_type(mask, kBool).contiguous();
  return call::op("aten::gt", "Tensor", mask, zeros({}, mask.options())).contiguous();
}

}  // namespace detops
