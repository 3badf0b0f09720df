// SPDX-License-Identifier: MIT
#include "roi_pool_kernels.h"

#include "roi_align_kernels.h"

#define DETOPS_KERNELS "../roi/roi_pool_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const RoIPoolKernels<T>& roi_pool_kernels() {
  return DETOPS_IN_USE(kRoIPoolKernels<T>);
}
template const RoIPoolKernels<float>& roi_pool_kernels();
template const RoIPoolKernels<double>& roi_pool_kernels();
template const RoIPoolKernels<Half>& roi_pool_kernels();
template const RoIPoolKernels<BFloat16>& roi_pool_kernels();

}  // namespace detops::cpu
