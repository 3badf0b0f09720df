// SPDX-License-Identifier: MIT
#include "rotated_samples_kernels.h"

#define DETOPS_KERNELS "../roi/rotated_samples_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const RotatedSampleKernels<T>& rotated_sample_kernels() {
  return DETOPS_IN_USE(kRotatedSampleKernels<T>);
}
template const RotatedSampleKernels<float>& rotated_sample_kernels();
template const RotatedSampleKernels<double>& rotated_sample_kernels();
template const RotatedSampleKernels<Half>& rotated_sample_kernels();
template const RotatedSampleKernels<BFloat16>& rotated_sample_kernels();

}  // namespace detops::cpu
