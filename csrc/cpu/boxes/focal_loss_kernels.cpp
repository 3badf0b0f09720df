// SPDX-License-Identifier: MIT
#include "focal_loss_kernels.h"

#define DETOPS_KERNELS "../boxes/focal_loss_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const FocalKernels<T>& focal_kernels() {
  return DETOPS_IN_USE(kFocalKernels<T>);
}
template const FocalKernels<float>& focal_kernels();
template const FocalKernels<double>& focal_kernels();
template const FocalKernels<Half>& focal_kernels();
template const FocalKernels<BFloat16>& focal_kernels();

}  // namespace detops::cpu
