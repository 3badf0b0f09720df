// SPDX-License-Identifier: MIT
#pragma once

#include "../common/buffer.h"
#include "rotated_boxes_kernels.h"

namespace detops::cpu {

// Owns an NmsBoxes<float>.
class BoundsList {
 public:
  NmsBoxes<float> reserve(int64_t count) {
    const int64_t stride = (count + 2 * kNmsPadding - 1) / kNmsPadding * kNmsPadding;
    float* x1 = data_.reserve(5 * stride);
    return {x1, x1 + stride, x1 + 2 * stride, x1 + 3 * stride, x1 + 4 * stride};
  }

 private:
  Buffer<float> data_;
};

}  // namespace detops::cpu
