// SPDX-License-Identifier: MIT
#include "soft_nms_kernels.h"

#define DETOPS_KERNELS "../nms/soft_nms_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const SoftNmsKernels<T>& soft_nms_kernels() {
  return DETOPS_IN_USE(kSoftNmsKernels<T>);
}
template const SoftNmsKernels<float>& soft_nms_kernels();
template const SoftNmsKernels<double>& soft_nms_kernels();

}  // namespace detops::cpu
