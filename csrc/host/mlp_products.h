// SPDX-License-Identifier: MIT
#pragma once

#include "../ops.h"
#include "../products.h"

// The parts of an MLP that both backends compute with ATen's matrix products.
namespace detops {

inline void mlp_products(const Tensor& x, const Tensor& hidden_weights, const Tensor& hidden_bias,
                         const Tensor& output_weights, const Tensor& output_bias,
                         const Tensor& output, const Tensor& hidden) {
  addmm_out(hidden, hidden_bias, x, hidden_weights.t());
  call::op("aten::relu_", "", hidden);
  addmm_out(output, output_bias, hidden, output_weights.t());
}

// Computes all gradients from those of the output and of the hidden units before relu.
inline void mlp_gradients(const Tensor& grad, const Tensor& to_hidden, const Tensor& x,
                          const Tensor& hidden, const Tensor& hidden_weights, bool input_wanted,
                          const Tensor& to_input, const Tensor& to_hidden_weights,
                          const Tensor& to_hidden_bias, const Tensor& to_output_weights,
                          const Tensor& to_output_bias) {
  if (input_wanted) mm_out(to_input, to_hidden, hidden_weights);
  mm_out(to_hidden_weights, to_hidden.t(), x);
  sum_of_rows_out(to_hidden_bias, to_hidden);
  mm_out(to_output_weights, grad.t(), hidden);
  sum_of_rows_out(to_output_bias, grad);
}

}  // namespace detops
