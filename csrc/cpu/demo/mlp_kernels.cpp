// SPDX-License-Identifier: MIT
#include "mlp_kernels.h"

#define DETOPS_KERNELS "../demo/mlp_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const MlpKernels<T>& mlp_kernels() {
  return DETOPS_IN_USE(kMlpKernels<T>);
}
template const MlpKernels<float>& mlp_kernels();
template const MlpKernels<double>& mlp_kernels();

}  // namespace detops::cpu
