// SPDX-License-Identifier: MIT
#include <ATen/TensorUtils.h>

#include "../ops.h"
#include "checks.h"

namespace detops::meta {
namespace {

// Of the shape that the other arguments ask for.
void check_like(const char* op, const char* name, const Tensor& t, c10::SymIntArrayRef shape,
                const char* other_name, const Tensor& other) {
  check_sizes(op, name, t, shape);
  check_same_type(op, name, t, other_name, other);
  check_same_device(op, name, t, other_name, other);
}

// What a backward pass reads is never below float32.
at::TensorOptions wide_options(const Tensor& input) {
  return input.options().dtype(compute_type(input.scalar_type()));
}

void check_wide(const char* op, const char* name, const Tensor& t, c10::SymIntArrayRef shape,
                const Tensor& input) {
  check_sizes(op, name, t, shape);
  const at::ScalarType type = compute_type(input.scalar_type());
  DETOPS_CHECK(t.scalar_type() == type, op, name, " must be ", type, ", got ", t.scalar_type());
  check_same_device(op, name, t, "input", input);
}

Tensor empty(const Tensor& like, c10::SymIntArrayRef shape) {
  return at::empty_symint(shape, like.options().memory_format(at::MemoryFormat::Contiguous));
}

}  // namespace

Tensor axpy_forward(const Tensor& x, const Tensor& y, double /* alpha */) {
  check_floating("axpy", "x", x);
  check_like("axpy", "y", y, x.sym_sizes(), "x", x);
  return empty(x, x.sym_sizes());
}

std::tuple<Tensor, Tensor> axpy_backward(const Tensor& grad, double /* alpha */) {
  check_floating("axpy_backward", "grad", grad);
  return {empty(grad, grad.sym_sizes()), empty(grad, grad.sym_sizes())};
}

void check_gdh(const Tensor& x) {
  DETOPS_CHECK(x.layout() == at::kStrided, "gdh", "x must be strided, got ", x.layout());
}

Tensor gdh_forward(const Tensor& x) {
  check_gdh(x);
  return empty(x, {x.sym_numel()});
}

std::tuple<Tensor, Tensor> mlp_forward(const Tensor& input, const Tensor& hidden_weights,
                                       const Tensor& hidden_bias, const Tensor& output_weights,
                                       const Tensor& output_bias) {
  check_floating("mlp", "input", input);
  DETOPS_CHECK(input.dim() == 2, "mlp", "input must be [B, I], got ", input.sym_sizes());
  DETOPS_CHECK(hidden_weights.dim() == 2, "mlp", "hidden_weights must be [H, I], got ",
               hidden_weights.sym_sizes());
  DETOPS_CHECK(output_weights.dim() == 2, "mlp", "output_weights must be [O, H], got ",
               output_weights.sym_sizes());
  const auto rows = input.sym_size(0), inputs = input.sym_size(1);
  const auto hidden = hidden_weights.sym_size(0), outputs = output_weights.sym_size(0);
  check_like("mlp", "hidden_weights", hidden_weights, {hidden, inputs}, "input", input);
  check_like("mlp", "hidden_bias", hidden_bias, {1, hidden}, "input", input);
  check_like("mlp", "output_weights", output_weights, {outputs, hidden}, "input", input);
  check_like("mlp", "output_bias", output_bias, {1, outputs}, "input", input);
  return {empty(input, {rows, outputs}), empty(input, {rows, hidden})};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> mlp_backward(
    const Tensor& grad, const Tensor& input, const Tensor& hidden, const Tensor& hidden_weights,
    const Tensor& output_weights, bool input_wanted) {
  const char* op = "mlp_backward";
  check_floating(op, "input", input);
  DETOPS_CHECK(input.dim() == 2, op, "input must be [B, I], got ", input.sym_sizes());
  DETOPS_CHECK(hidden.dim() == 2, op, "hidden must be [B, H], got ", hidden.sym_sizes());
  DETOPS_CHECK(grad.dim() == 2, op, "grad must be [B, O], got ", grad.sym_sizes());
  const auto rows = input.sym_size(0), inputs = input.sym_size(1), units = hidden.sym_size(1);
  const auto outputs = grad.sym_size(1);
  check_like(op, "grad", grad, {rows, outputs}, "input", input);
  check_like(op, "hidden", hidden, {rows, units}, "input", input);
  check_like(op, "hidden_weights", hidden_weights, {units, inputs}, "input", input);
  check_like(op, "output_weights", output_weights, {outputs, units}, "input", input);
  return {input_wanted ? empty(input, {rows, inputs}) : empty(input, {0}),
          empty(input, {units, inputs}), empty(input, {1, units}), empty(input, {outputs, units}),
          empty(input, {1, outputs})};
}

std::tuple<Tensor, Tensor, Tensor> lltm_forward(const Tensor& input, const Tensor& weights,
                                                const Tensor& bias, const Tensor& h,
                                                const Tensor& c) {
  const char* op = input.dim() == 2 ? "lltm_cell" : "lltm";
  check_floating(op, "input", input);
  DETOPS_CHECK(input.dim() == 2 || input.dim() == 3, op, "input must be [T, B, I], got ",
               input.sym_sizes());
  DETOPS_CHECK(h.dim() == 2, op, "h must be [B, H], got ", h.sym_sizes());
  const auto rows = input.sym_size(-2), inputs = input.sym_size(-1), state = h.sym_size(1);
  check_like(op, "h", h, {rows, state}, "input", input);
  check_like(op, "c", c, {rows, state}, "input", input);
  check_like(op, "weights", weights, {3 * state, state + inputs}, "input", input);
  check_like(op, "bias", bias, {3 * state}, "input", input);
  c10::SymDimVector shape(input.sym_sizes());
  shape.back() = state;
  Tensor output = empty(input, shape);
  const auto wide = wide_options(input);
  Tensor cells = at::empty_symint(shape, wide);
  shape.back() = 3 * state;
  return {output, cells, at::empty_symint(shape, wide)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lltm_backward(
    const Tensor& grad_output, const std::optional<Tensor>& grad_h, const Tensor& grad_c,
    const Tensor& input, const Tensor& weights, const Tensor& h, const Tensor& c,
    const Tensor& output, const Tensor& cells, const Tensor& gates, bool input_wanted,
    bool h_wanted) {
  const char* op = "lltm_backward";
  check_floating(op, "input", input);
  DETOPS_CHECK(input.dim() == 2 || input.dim() == 3, op, "input must be [T, B, I], got ",
               input.sym_sizes());
  DETOPS_CHECK(h.dim() == 2, op, "h must be [B, H], got ", h.sym_sizes());
  const auto rows = input.sym_size(-2), inputs = input.sym_size(-1), state = h.sym_size(1);
  c10::SymDimVector shape(input.sym_sizes());
  shape.back() = state;
  check_like(op, "grad_output", grad_output, shape, "input", input);
  check_like(op, "output", output, shape, "input", input);
  check_wide(op, "cells", cells, shape, input);
  shape.back() = 3 * state;
  check_wide(op, "gates", gates, shape, input);
  check_like(op, "h", h, {rows, state}, "input", input);
  check_like(op, "c", c, {rows, state}, "input", input);
  if (grad_h) check_like(op, "grad_h", *grad_h, {rows, state}, "input", input);
  check_like(op, "grad_c", grad_c, {rows, state}, "input", input);
  check_like(op, "weights", weights, {3 * state, state + inputs}, "input", input);
  return {input_wanted ? empty(input, input.sym_sizes()) : empty(input, {0}),
          empty(weights, weights.sym_sizes()), empty(weights, {3 * state}),
          h_wanted ? empty(h, h.sym_sizes()) : empty(h, {0}), empty(c, c.sym_sizes())};
}

}  // namespace detops::meta
