// SPDX-License-Identifier: MIT
#include "matrix_nms_kernels.h"

#define DETOPS_KERNELS "../nms/matrix_nms_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const MatrixNmsKernels<T>& matrix_nms_kernels() {
  return DETOPS_IN_USE(kMatrixNmsKernels<T>);
}
template const MatrixNmsKernels<float>& matrix_nms_kernels();
template const MatrixNmsKernels<double>& matrix_nms_kernels();

}  // namespace detops::cpu
