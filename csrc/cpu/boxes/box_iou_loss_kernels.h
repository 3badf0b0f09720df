// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "../../math/overlap.h"

namespace detops::cpu {

// Losses of the pairs (a[i], b[i]), and their derivatives. See box_iou_loss.inl.
template <typename T>
struct BoxLossKernels {
  using Forward = void(const T* a, const T* b,  // [count, 4]
                       int64_t count, T eps, T* loss);
  using Backward = void(const T* grad, const T* a, const T* b, int64_t count, T eps, T* grad_a,
                        T* grad_b);
  Forward* forward[4];  // by math::Overlap
  Backward* backward[4];
};

// The table for the instruction set in use.
template <typename T>
const BoxLossKernels<T>& box_loss_kernels();

}  // namespace detops::cpu
