// SPDX-License-Identifier: MIT
#include "soft_nms.h"

#define DETOPS_KERNELS "soft_nms.inl"
#include "variants.h"

namespace detops::cpu {

template <typename T>
const SoftNmsKernels<T>& soft_nms_kernels() {
  return DETOPS_IN_USE(kSoftNmsKernels<T>);
}
template const SoftNmsKernels<float>& soft_nms_kernels();
template const SoftNmsKernels<double>& soft_nms_kernels();

}  // namespace detops::cpu
