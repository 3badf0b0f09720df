// SPDX-License-Identifier: MIT
#include "sparse_pool_kernels.h"

#define DETOPS_KERNELS "../roi/sparse_pool_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const SparsePoolKernels<T>& sparse_pool_kernels() {
  return DETOPS_IN_USE(kSparsePoolKernels<T>);
}
template const SparsePoolKernels<float>& sparse_pool_kernels();
template const SparsePoolKernels<double>& sparse_pool_kernels();
template const SparsePoolKernels<Half>& sparse_pool_kernels();
template const SparsePoolKernels<BFloat16>& sparse_pool_kernels();

}  // namespace detops::cpu
