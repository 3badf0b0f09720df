// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

#include "../../math/half.h"
#include "../../math/ms_deform_attn.h"

namespace detops::cpu {

// No vector has more lanes.
constexpr int64_t kAttentionPadding = 16;

// One head of one image.
template <typename T>
struct AttentionHead {
  using A = accumulate_t<T>;
  using Index = std::conditional_t<sizeof(A) == 8, int64_t, int32_t>;
  const T* value;  // [S, D], positions `stride` apart
  int64_t stride, channels, samples;
  int64_t row;                          // D padded to whole vectors
  const Index *height, *width, *start;  // of each sample's level, padded likewise
  const T* zeros;                       // [D], what lies beyond the border
};

// Locations are [samples, 2] and weights [samples], those of one query. See ms_deform_attn.inl.
template <typename T>
struct AttentionKernels {
  using A = accumulate_t<T>;
  void (*forward)(const AttentionHead<T>&, const A* locations, const A* weights, T* output,
                  A* scratch);  // [row]
  // Writes the gradients to locations and weights, and adds to those of the values: a row per
  // position, from position -1 on, which takes what lies beyond the border.
  void (*backward)(const AttentionHead<T>&, const A* locations, const A* weights, const T* grad,
                   A* to_value, A* to_locations, A* to_weights, A* scratch);
  // The gradients of the values, brought to where a head's values lie.
  void (*store_rows)(const AttentionHead<T>&, const A* to_value, int64_t count, T* output);
};

// The table for the instruction set in use.
template <typename T>
const AttentionKernels<T>& attention_kernels();

}  // namespace detops::cpu
