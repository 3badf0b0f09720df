// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

#include "../../math/half.h"
#include "../../math/ms_deform_attn.h"

namespace detops::cpu {

// Asks for memory that will be read, or written, soon: for what lies too far apart for a processor
// to see a pattern.
template <bool kWritten = false>
inline __attribute__((always_inline)) void fetch(const void* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(static_cast<const char*>(data) + i, kWritten);
  }
}

// The levels of a query's samples, padded with what a vector may read beyond them.
template <typename A>
struct SampleLevels {
  using Index = std::conditional_t<sizeof(A) == 8, int64_t, int32_t>;
  const Index *height, *width, *start;
  int64_t samples;
};

// The values of one head of one image.
template <typename T>
struct HeadValues {
  const T* data;  // [S, D], positions `stride` apart
  int64_t stride, channels;
  const T* beyond;  // [D] zeros: what lies beyond the border
};

// The same together with their gradients, close to one another: a row per position, from position
// -1 on, which stands for all that lies beyond the border. A row is the values, then the gradients,
// each padded with zeros to `padded` numbers, whole vectors.
template <typename A>
struct HeadRows {
  A* data;
  int64_t padded;
};

// Locations are [samples, 2] and weights [samples], those of one query. See ms_deform_attn.inl.
template <typename T>
struct AttentionKernels {
  using A = accumulate_t<T>;
  int64_t lanes;  // of a vector of A
  void (*forward)(const SampleLevels<A>&, const HeadValues<T>&, const A* locations,
                  const A* weights, T* output, A* scratch);  // [D padded]
  // Values in, gradients zero.
  void (*load_rows)(const HeadValues<T>&, int64_t positions, const HeadRows<A>&);
  // Writes the gradients to locations and weights, and adds to those of the values.
  void (*backward)(const SampleLevels<A>&, const HeadRows<A>&, const A* locations, const A* weights,
                   const A* grad, A* to_locations, A* to_weights);  // grad: [padded]
  void (*store_rows)(const HeadRows<A>&, int64_t positions, const HeadValues<T>& like, T* output);
};

// The table for the instruction set in use.
template <typename T>
const AttentionKernels<T>& attention_kernels();

}  // namespace detops::cpu
