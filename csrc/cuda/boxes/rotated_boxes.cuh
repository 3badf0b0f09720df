// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/rotated_box.h"
#include "../common/launch.cuh"

namespace detops::cuda {

using RotatedBox = math::RotatedBox<double>;

// A RotatedBox for each of the boxes: float32 or float64 [N, 5], contiguous.
template <typename T>
Tensor rotated_boxes(const Tensor& boxes) {
  constexpr int64_t kNumbers = sizeof(RotatedBox) / sizeof(double);
  const Tensor prepared = empty({boxes.size(0), kNumbers}, boxes.options().dtype(kDouble));
  const T* from = elements(boxes);
  RotatedBox* to = elements(prepared);
  for_each(boxes.size(0), [=] __device__(int64_t i) { to[i] = math::rotated_box(from + 5 * i); });
  return prepared;
}

}  // namespace detops::cuda
