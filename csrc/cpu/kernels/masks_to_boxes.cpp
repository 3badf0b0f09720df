// SPDX-License-Identifier: MIT
#include "masks_to_boxes.h"

#define DETOPS_KERNELS "masks_to_boxes.inl"
#include "variants.h"

namespace detops::cpu {

const MaskKernels& mask_kernels() { return DETOPS_IN_USE(kMaskKernels); }

}  // namespace detops::cpu
