// SPDX-License-Identifier: MIT
#include "../ops.h"
#include "checks.h"

namespace detops::meta {
namespace {

at::ScalarType check_inputs(const char* op, const Tensor& inputs, const Tensor& targets) {
  check_floating(op, "inputs", inputs);
  check_floating(op, "targets", targets);
  check_same_device(op, "targets", targets, "inputs", inputs);
  check_sizes(op, "targets", targets, inputs.sym_sizes());
  return at::promote_types(inputs.scalar_type(), targets.scalar_type());
}

}  // namespace

Tensor sigmoid_focal_loss_forward(const Tensor& inputs, const Tensor& targets, double, double) {
  const auto type = check_inputs("sigmoid_focal_loss", inputs, targets);
  return at::empty_symint(inputs.sym_sizes(), inputs.options().dtype(type));
}

Tensor sigmoid_focal_loss_sum(const Tensor& inputs, const Tensor& targets, double, double) {
  const auto type = check_inputs("sigmoid_focal_loss", inputs, targets);
  return at::empty({}, inputs.options().dtype(compute_type(type)));
}

Tensor sigmoid_focal_loss_backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                                   double, double) {
  const char* op = "sigmoid_focal_loss_backward";
  check_inputs(op, inputs, targets);
  check_grad_like(op, grad, inputs);
  return at::empty_symint(inputs.sym_sizes(), inputs.options());
}

}  // namespace detops::meta
