// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace detops::cpu {

// One step of an LLTM; rows are those of the batch.
template <typename T>
struct LltmStep {
  int64_t state;          // H
  int64_t depth;          // H, or 0 where `gates` holds the state's part already
  const T* packed;        // the state's weights
  const T* state_before;  // [B, H]
  const T* cell_before;   // [B, H]
  T* gates;               // [B, 3H] in: the input's part; out: after activation
  T* cell;                // [B, H]
  T* state_after;         // [B, H]
};

template <typename T>
struct LltmBackStep {
  int64_t state;
  const T* packed;       // the state's weights, or nullptr: then grad_state stays
  const T* gates;        // [B, 3H] after activation
  const T* cell;         // [B, H]
  const T* grad_output;  // [B, H]
  T* grad_state;         // [B, H] in: from the step after, or nullptr; out: to the step before
  T* grad_cell;          // [B, H] likewise
  T* grad_gates;         // [B, 3H] before activation
};

// out[r, c] = sum over k of left[r, k] right[k, c], each matrix with the distance of its rows.
template <typename T>
struct SmallProduct {
  int64_t rows, columns, depth;
  const T* left;
  int64_t left_row, left_depth;
  const T* right;
  int64_t right_row;
  T* out;
  int64_t out_row;
};

// out [rows, columns] = [left, more] times right [columns, depth + more_depth] transposed, plus
// bias; all without gaps.
template <typename T>
struct TurnedProduct {
  int64_t rows, columns, depth, more_depth;
  const T* left;  // [rows, depth]
  const T* more;  // [rows, more_depth]
  const T *right, *bias;
  T* out;
  T* scratch;  // [depth + more_depth, kTurnedLanes]
};
constexpr int64_t kTurnedLanes = 16;

// See product.inl.
template <typename T>
struct ProductKernels {
  void (*small)(const SmallProduct<T>&);
  void (*turned)(const TurnedProduct<T>&);
};

// See lltm.inl.
template <typename T>
struct LltmKernels {
  int64_t columns;  // packed weights have room for a multiple of this many states
  void (*pack_forward)(const T* weights, int64_t stride, int64_t state, T* packed);
  void (*pack_backward)(const T* weights, int64_t stride, int64_t state, T* packed);
  void (*forward)(const LltmStep<T>&, int64_t begin, int64_t end);
  void (*backward)(const LltmBackStep<T>&, int64_t begin, int64_t end);
};

// The table for the instruction set in use.
template <typename T>
const LltmKernels<T>& lltm_kernels();

template <typename T>
const ProductKernels<T>& product_kernels();

}  // namespace detops::cpu
