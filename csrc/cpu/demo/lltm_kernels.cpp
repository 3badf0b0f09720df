// SPDX-License-Identifier: MIT
#include "lltm_kernels.h"

#include "../../math/host_device.h"

#define DETOPS_KERNELS "../demo/lltm_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const LltmKernels<T>& lltm_kernels() {
  return DETOPS_IN_USE(kLltmKernels<T>);
}
template const LltmKernels<float>& lltm_kernels();
template const LltmKernels<double>& lltm_kernels();

template <typename T>
const ProductKernels<T>& product_kernels() {
  return DETOPS_IN_USE(kProductKernels<T>);
}
template const ProductKernels<float>& product_kernels();

}  // namespace detops::cpu
