// SPDX-License-Identifier: MIT
#pragma once

#include "../ops.h"
#include "../products.h"

// What both backends of the MLP leave to ATen's matrix products.
namespace detops {

// Output and hidden units.
inline std::tuple<Tensor, Tensor> mlp_products(const Tensor& x, const Tensor& hidden_weights,
                                               const Tensor& hidden_bias,
                                               const Tensor& output_weights,
                                               const Tensor& output_bias) {
  const Tensor hidden = empty({x.size(0), hidden_weights.size(0)}, x.options());
  const Tensor output = empty({x.size(0), output_weights.size(0)}, x.options());
  addmm_out(hidden, hidden_bias, x, hidden_weights.t());
  call::op("aten::relu_", "", hidden);
  addmm_out(output, output_bias, hidden, output_weights.t());
  return {output, hidden};
}

// All gradients from those of the output and of the hidden units before relu; `to_input` comes
// filled only where it is wanted.
inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> mlp_gradients(
    const Tensor& grad, const Tensor& to_hidden, const Tensor& x, const Tensor& hidden,
    const Tensor& hidden_weights, const Tensor& to_input, bool input_wanted) {
  return {input_wanted ? mm(to_hidden, hidden_weights) : to_input, mm(to_hidden.t(), x),
          sum_of_rows(to_hidden), mm(grad.t(), hidden), sum_of_rows(grad)};
}

}  // namespace detops
