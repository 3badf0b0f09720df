// SPDX-License-Identifier: MIT
#pragma once

#include "../boxes/rotated_boxes_kernels.h"

namespace detops::cpu {

// Boxes of one class in the order of selection.
struct RotatedSegment {
  const RotatedBox* boxes;      // [count]
  const RotatedBounds* bounds;  // [count], scaled by `factor`
  int64_t count;
  double threshold;  // t, not NaN
  double factor;     // t / (1 + t), rounded a little down
  uint8_t* keep;     // [count], out: 1 for a box that no kept box before it suppresses
};

// See nms_rotated.inl. T is the type that an IoU is rounded to.
template <typename T>
struct RotatedNmsKernels {
  // `kept` and `index` have room for all boxes.
  void (*suppress)(const RotatedSegment&, const NmsBoxes<float>& kept, uint32_t* index);
};

// The table for the instruction set in use.
template <typename T>
const RotatedNmsKernels<T>& rotated_nms_kernels();

}  // namespace detops::cpu
