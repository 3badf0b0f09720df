// SPDX-License-Identifier: MIT
#include "ms_deform_attn_kernels.h"

#define DETOPS_KERNELS "../deform/ms_deform_attn_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const AttentionKernels<T>& attention_kernels() {
  return DETOPS_IN_USE(kAttentionKernels<T>);
}
template const AttentionKernels<float>& attention_kernels();
template const AttentionKernels<double>& attention_kernels();
template const AttentionKernels<Half>& attention_kernels();
template const AttentionKernels<BFloat16>& attention_kernels();

}  // namespace detops::cpu
