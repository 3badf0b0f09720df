// SPDX-License-Identifier: MIT
#pragma once

#include "ops.h"

// What both backends of the MLP leave to ATen's matrix products.
namespace detops {

// Output and hidden units, in the dtype `type`.
inline std::tuple<Tensor, Tensor> mlp_products(const Tensor& x, const Tensor& hidden_weights,
                                               const Tensor& hidden_bias,
                                               const Tensor& output_weights,
                                               const Tensor& output_bias, at::ScalarType type) {
  const Tensor hidden = at::addmm(hidden_bias, x, hidden_weights.t()).relu_();
  return {as_type(at::addmm(output_bias, hidden, output_weights.t()), type), as_type(hidden, type)};
}

// All gradients from those of the output and of the hidden units before relu; `to_input` comes
// filled only where it is wanted.
inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> mlp_gradients(
    const Tensor& grad, const Tensor& to_hidden, const Tensor& x, const Tensor& hidden,
    const Tensor& hidden_weights, const Tensor& to_input, bool input_wanted, at::ScalarType type) {
  return {input_wanted ? as_type(to_hidden.mm(hidden_weights), type) : to_input,
          as_type(to_hidden.t().mm(x), type), as_type(to_hidden.sum({0}, true), type),
          as_type(grad.t().mm(hidden), type), as_type(grad.sum({0}, true), type)};
}

}  // namespace detops
