// SPDX-License-Identifier: MIT
#include "focal_loss.h"

#define DETOPS_KERNELS "focal_loss.inl"
#include "variants.h"

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
