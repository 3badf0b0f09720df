// SPDX-License-Identifier: MIT
#include "box_iou_rotated_kernels.h"

#define DETOPS_KERNELS "../boxes/box_iou_rotated_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const RotatedIoUKernels<T>& rotated_iou_kernels() {
  return DETOPS_IN_USE(kRotatedIoUKernels<T>);
}
template const RotatedIoUKernels<float>& rotated_iou_kernels();
template const RotatedIoUKernels<double>& rotated_iou_kernels();

}  // namespace detops::cpu
