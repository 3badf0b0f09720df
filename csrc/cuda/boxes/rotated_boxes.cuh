// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/rotated_box.h"
#include "../../ops.h"
#include "../common/launch.cuh"

namespace detops::cuda {

using RotatedBox = math::RotatedBox<double>;

template <typename T>
__global__ void rotated_boxes_kernel(const T* boxes, int64_t count, RotatedBox* prepared) {
  DETOPS_FOR_EACH(i, count) { prepared[i] = math::rotated_box(boxes + 5 * i); }
}

// A RotatedBox for each of the boxes: float32 or float64 [N, 5], contiguous.
template <typename T>
Tensor rotated_boxes(const Tensor& boxes) {
  constexpr int64_t kNumbers = sizeof(RotatedBox) / sizeof(double);
  const Tensor prepared = empty({boxes.size(0), kNumbers}, boxes.options().dtype(kDouble));
  launch("rotated_boxes", rotated_boxes_kernel<T>, blocks_for(boxes.size(0)),
         boxes.const_data_ptr<T>(), boxes.size(0),
         reinterpret_cast<RotatedBox*>(prepared.mutable_data_ptr<double>()));
  return prepared;
}

}  // namespace detops::cuda
