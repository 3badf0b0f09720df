// SPDX-License-Identifier: MIT
#pragma once

#include "rotated_boxes_kernels.h"

namespace detops::cpu {

struct RotatedList {
  const RotatedBox* boxes;
  NmsBoxes<float> bounds;
  int64_t count;
};

// See box_iou_rotated.inl.
template <typename T>
struct RotatedIoUKernels {
  void (*row)(const RotatedBox&, const RotatedBounds&, const RotatedList& others, T* row);
};

// The table for the instruction set in use.
template <typename T>
const RotatedIoUKernels<T>& rotated_iou_kernels();

}  // namespace detops::cpu
