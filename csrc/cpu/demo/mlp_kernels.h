// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace detops::cpu {

// The parameters of an MLP, vectors of hidden units padded with zeros to whole vectors.
template <typename T>
struct MlpLayers {
  int64_t inputs, hidden, padded, outputs;
  const T* hidden_weights;  // [inputs, padded]
  const T* hidden_bias;     // [padded]
  const T* output_weights;  // [outputs, padded]
  const T* output_bias;     // [outputs]
};

// Likewise; `input` is nullptr where it is not wanted, else [rows, inputs].
template <typename T>
struct MlpGradients {
  T *input, *hidden_weights, *hidden_bias, *output_weights, *output_bias;
};

// See mlp.inl.
template <typename T>
struct MlpKernels {
  void (*forward)(const MlpLayers<T>&, const T* input, int64_t begin, int64_t end, T* hidden,
                  T* output);
  void (*backward)(const MlpLayers<T>&, const T* input, const T* hidden, const T* grad,
                   int64_t begin, int64_t end, const MlpGradients<T>&);
};

// The table for the instruction set in use.
template <typename T>
const MlpKernels<T>& mlp_kernels();

}  // namespace detops::cpu
