// SPDX-License-Identifier: MIT
#include "ps_roi_align_kernels.h"

// Bins are a few pixels wide: longer vectors would cross lines of cache for lanes of no weight.
#define DETOPS_NARROW_VECTORS
#define DETOPS_KERNELS "../roi/ps_roi_align_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const PSRoIAlignKernels<T>& ps_roi_align_kernels() {
  return DETOPS_IN_USE(kPSRoIAlignKernels<T>);
}
template const PSRoIAlignKernels<float>& ps_roi_align_kernels();
template const PSRoIAlignKernels<double>& ps_roi_align_kernels();
template const PSRoIAlignKernels<Half>& ps_roi_align_kernels();
template const PSRoIAlignKernels<BFloat16>& ps_roi_align_kernels();

}  // namespace detops::cpu
