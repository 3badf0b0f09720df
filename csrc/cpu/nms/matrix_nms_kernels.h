// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "../../math/decay.h"

namespace detops::cpu {

// Boxes of one label by descending score, as a structure of arrays, with room to read a vector
// more.
template <typename T>
struct MatrixNmsList {
  const T *x1, *y1, *x2, *y2, *area;
  const T* term;  // math::decay::matrix_term, of the boxes that it is known of
};
constexpr int64_t kMatrixNmsPadding = 16;

// What is known of a box from some of those better than it.
template <typename T>
struct MatrixNmsState {
  T most;    // largest IoU
  T weight;  // largest math::decay::matrix_weight
};

// See matrix_nms.inl.
template <typename T>
struct MatrixNmsKernels {
  // Adds what the boxes [begin, end) say of box j.
  using Meet = void(const MatrixNmsList<T>&, int64_t begin, int64_t end, int64_t j,
                    MatrixNmsState<T>&);
  Meet* meet[2];  // by math::Decay
};

// The table for the instruction set in use.
template <typename T>
const MatrixNmsKernels<T>& matrix_nms_kernels();

}  // namespace detops::cpu
