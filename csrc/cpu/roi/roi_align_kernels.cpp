// SPDX-License-Identifier: MIT
#include "roi_align_kernels.h"

#define DETOPS_KERNELS "../roi/roi_align_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const RoIAlignKernels<T>& roi_align_kernels() {
  return DETOPS_IN_USE(kRoIAlignKernels<T>);
}
template const RoIAlignKernels<float>& roi_align_kernels();
template const RoIAlignKernels<double>& roi_align_kernels();
template const RoIAlignKernels<Half>& roi_align_kernels();
template const RoIAlignKernels<BFloat16>& roi_align_kernels();

}  // namespace detops::cpu
