// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "../../math/paste_masks_in_image.h"

namespace detops::cpu {

// See paste_masks_in_image.inl.
template <typename T>
struct PasteKernels {
  // A row of pixels between two stretched rows of cells.
  using Row = void(const T* low, const T* high, T weight_low, T weight_high, T threshold,
                   int64_t count, uint8_t* pixels);
  Row *binary, *soft;
};

// The table for the instruction set in use.
template <typename T>
const PasteKernels<T>& paste_kernels();

}  // namespace detops::cpu
