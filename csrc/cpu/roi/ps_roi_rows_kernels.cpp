// SPDX-License-Identifier: MIT
#include "ps_roi_rows_kernels.h"

#define DETOPS_KERNELS "../roi/ps_roi_rows_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const PSRoIRowsKernels<T>& ps_roi_rows_kernels() {
  return DETOPS_IN_USE(kPSRoIRowsKernels<T>);
}
template const PSRoIRowsKernels<float>& ps_roi_rows_kernels();
template const PSRoIRowsKernels<double>& ps_roi_rows_kernels();
template const PSRoIRowsKernels<Half>& ps_roi_rows_kernels();
template const PSRoIRowsKernels<BFloat16>& ps_roi_rows_kernels();

}  // namespace detops::cpu
