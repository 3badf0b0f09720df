// SPDX-License-Identifier: MIT
#include "function.h"

namespace detops::autograd {
namespace {

struct AxpyBackwardFunction : torch::autograd::Function<AxpyBackwardFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& grad, double alpha) {
    const BelowAutograd below;
    ctx->saved_data["alpha"] = alpha;
    auto [grad_x, grad_y] = DETOPS_OP(axpy_backward).call(grad, alpha);
    return {grad_x, grad_y};
  }

  // g -> (alpha g, g) transposed is (a, b) -> alpha a + b: axpy itself.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {axpy(grads[0], grads[1], ctx->saved_data["alpha"].toDouble()), Variable()};
  }
};

struct AxpyFunction : torch::autograd::Function<AxpyFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y, double alpha) {
    const BelowAutograd below;
    ctx->saved_data["alpha"] = alpha;
    return DETOPS_OP(axpy_forward).call(x, y, alpha);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const double alpha = ctx->saved_data["alpha"].toDouble();
    const variable_list to = AxpyBackwardFunction::apply(grads[0], alpha);
    return {to[0], to[1], Variable()};
  }
};

}  // namespace

Tensor axpy(const Tensor& x, const Tensor& y, double alpha) {
  if (recorded(x, y)) return AxpyFunction::apply(x, y, alpha);
  const BelowAutograd below;
  return DETOPS_OP(axpy_forward).call(x, y, alpha);
}

}  // namespace detops::autograd
