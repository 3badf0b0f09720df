// SPDX-License-Identifier: MIT
#include "nms_rotated_kernels.h"

#define DETOPS_KERNELS "../nms/nms_rotated_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const RotatedNmsKernels<T>& rotated_nms_kernels() {
  return DETOPS_IN_USE(kRotatedNmsKernels<T>);
}
template const RotatedNmsKernels<float>& rotated_nms_kernels();
template const RotatedNmsKernels<double>& rotated_nms_kernels();

}  // namespace detops::cpu
