// SPDX-License-Identifier: MIT
#include "box_iou_loss_kernels.h"

#define DETOPS_KERNELS "../boxes/box_iou_loss_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const BoxLossKernels<T>& box_loss_kernels() {
  return DETOPS_IN_USE(kBoxLossKernels<T>);
}
template const BoxLossKernels<float>& box_loss_kernels();
template const BoxLossKernels<double>& box_loss_kernels();

}  // namespace detops::cpu
