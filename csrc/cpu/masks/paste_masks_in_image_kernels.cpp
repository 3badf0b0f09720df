// SPDX-License-Identifier: MIT
#include "paste_masks_in_image_kernels.h"

#define DETOPS_KERNELS "../masks/paste_masks_in_image_kernels.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
const PasteKernels<T>& paste_kernels() {
  return DETOPS_IN_USE(kPasteKernels<T>);
}
template const PasteKernels<float>& paste_kernels();
template const PasteKernels<double>& paste_kernels();

}  // namespace detops::cpu
