// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "../../math/decay.h"

namespace detops::cpu {

// Boxes that are left, as a structure of arrays, in input order. A score of NaN marks a box that is
// selected or dropped; such ones stand behind the last up to a whole vector.
template <typename T>
struct SoftNmsList {
  T *x1, *y1, *x2, *y2, *area, *score;
  int64_t count;
};
constexpr int64_t kSoftNmsPadding = 16;

struct SoftNmsNext {
  int64_t best;  // the first of the highest scores, -1 where none is left
  int64_t left;  // how many are
};

// See soft_nms.inl.
template <typename T>
struct SoftNmsKernels {
  using Rescale = SoftNmsNext(const SoftNmsList<T>&, const math::OverlapBox<T>& selected,
                              const math::SoftNmsRule<T>&);
  Rescale* rescale[3];  // by math::Decay
};

// The table for the instruction set in use.
template <typename T>
const SoftNmsKernels<T>& soft_nms_kernels();

}  // namespace detops::cpu
