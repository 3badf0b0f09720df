// SPDX-License-Identifier: MIT
#include "matrix_nms.h"

#define DETOPS_KERNELS "matrix_nms.inl"
#include "variants.h"

namespace detops::cpu {

template <typename T>
const MatrixNmsKernels<T>& matrix_nms_kernels() {
  return DETOPS_IN_USE(kMatrixNmsKernels<T>);
}
template const MatrixNmsKernels<float>& matrix_nms_kernels();
template const MatrixNmsKernels<double>& matrix_nms_kernels();

}  // namespace detops::cpu
