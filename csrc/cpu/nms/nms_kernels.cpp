// SPDX-License-Identifier: MIT
#include "nms_kernels.h"

#include "../../math/box.h"

#define DETOPS_KERNELS "../nms/nms_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const NmsKernels<T>& nms_kernels() {
  return DETOPS_IN_USE(kNmsKernels<T>);
}
template const NmsKernels<float>& nms_kernels();
template const NmsKernels<double>& nms_kernels();

}  // namespace detops::cpu
