// SPDX-License-Identifier: MIT
#include "roi_pool.h"

#include "roi_align.h"

#define DETOPS_KERNELS "roi_pool.inl"
#include "variants.h"

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
