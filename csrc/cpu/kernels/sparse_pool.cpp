// SPDX-License-Identifier: MIT
#include "sparse_pool.h"

#define DETOPS_KERNELS "sparse_pool.inl"
#include "variants.h"

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
