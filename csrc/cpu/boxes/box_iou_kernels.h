// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "../../math/overlap.h"

namespace detops::cpu {

// Boxes as a structure of arrays, with empty boxes behind the last up to a whole vector.
template <typename T>
struct OverlapBoxes {
  const T *x1, *y1, *x2, *y2, *area, *angle;
  int64_t count;
};
constexpr int64_t kOverlapPadding = 16;

// See box_iou.inl.
template <typename T>
struct OverlapKernels {
  using Row = void(const math::OverlapBox<T>&, const OverlapBoxes<T>&, T eps, T* row);
  Row* row[4];  // by math::Overlap
  void (*best)(const math::OverlapBox<T>&, const OverlapBoxes<T>&, T& best, int64_t& index);
};

// The table for the instruction set in use.
template <typename T>
const OverlapKernels<T>& overlap_kernels();

}  // namespace detops::cpu
