// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace detops::cpu {

struct MaskParams {
  int64_t height, width, element_size;  // of 1, 2, 4 or 8 bytes
  uint64_t bits;                        // that make an element other than zero, for eight bytes
};

// The first and last column and row that are set.
struct MaskExtent {
  int64_t x1, y1, x2, y2;
};

// See masks_to_boxes.inl.
struct MaskKernels {
  // False for a mask that is zero all over.
  bool (*extent)(const MaskParams& params, const uint8_t* mask, MaskExtent& extent);
};

// The table for the instruction set in use.
const MaskKernels& mask_kernels();

}  // namespace detops::cpu
