// SPDX-License-Identifier: MIT
#include "deform_conv2d_kernels.h"

#include "../../math/deform_conv2d.h"

#define DETOPS_KERNELS "../deform/deform_conv2d_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename A>
const DeformKernels<A>& deform_kernels() {
  return DETOPS_IN_USE(kDeformKernels<A>);
}
template const DeformKernels<float>& deform_kernels();
template const DeformKernels<double>& deform_kernels();

}  // namespace detops::cpu
