// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "../../math/focal_loss.h"
#include "../../math/half.h"

namespace detops::cpu {

// See focal_loss.inl. Arrays by math::Focus.
template <typename T>
struct FocalKernels {
  using A = accumulate_t<T>;
  using Forward = void(const math::Focal<A>&, const T* inputs, const T* targets, int64_t count,
                       T* losses);
  using Sum = A(const math::Focal<A>&, const T* inputs, const T* targets, int64_t count);
  // A grad of nullptr: the same one for all.
  using Backward = void(const math::Focal<A>&, const T* grad, A same, const T* inputs,
                        const T* targets, int64_t count, T* to_inputs);
  Forward* forward[4];
  Sum* sum[4];
  Backward* backward[4];
};

// The table for the instruction set in use.
template <typename T>
const FocalKernels<T>& focal_kernels();

}  // namespace detops::cpu
