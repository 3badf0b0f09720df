// SPDX-License-Identifier: MIT
#include "box_iou_kernels.h"

#define DETOPS_KERNELS "../boxes/box_iou_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const OverlapKernels<T>& overlap_kernels() {
  return DETOPS_IN_USE(kOverlapKernels<T>);
}
template const OverlapKernels<float>& overlap_kernels();
template const OverlapKernels<double>& overlap_kernels();

}  // namespace detops::cpu
