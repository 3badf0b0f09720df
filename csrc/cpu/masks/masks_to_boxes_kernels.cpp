// SPDX-License-Identifier: MIT
#include "masks_to_boxes_kernels.h"

#define DETOPS_KERNELS "../masks/masks_to_boxes_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

const MaskKernels& mask_kernels() { return DETOPS_IN_USE(kMaskKernels); }

}  // namespace detops::cpu
