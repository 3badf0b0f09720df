// SPDX-License-Identifier: MIT
#include "../meta/checks.h"
#include "function.h"

namespace detops::autograd {
namespace {

// What the next call starts from: the last state and cell, of their own memory.
Tensor last(const Tensor& steps, const Tensor& before) {
  return steps.sym_size(0) == 0 ? before.clone()
                                : steps.select(0, -1).to(before.options(), false, true);
}

struct LltmFunction : torch::autograd::Function<LltmFunction> {
  // Of one step: its state and cell. Of a sequence: all states, the last one again, the last cell.
  static variable_list forward(AutogradContext* ctx, const Tensor& input, const Tensor& weights,
                               const Tensor& bias, const Tensor& h, const Tensor& c) {
    const BelowAutograd below;
    auto [output, cells, gates] = DETOPS_OP(lltm_forward).call(input, weights, bias, h, c);
    ctx->save_for_backward({input, weights, h, c, output, cells, gates});
    if (input.dim() == 2) return {output, as_type(cells, c.scalar_type())};
    return {output, last(output, h), last(cells, c)};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Once once;
    const variable_list s = ctx->get_saved_variables();
    const bool input_wanted = ctx->needs_input_grad(0), h_wanted = ctx->needs_input_grad(3);
    const auto grad_h = grads.size() == 3 ? std::optional<Tensor>(grads[1]) : std::nullopt;
    auto [input, weights, bias, h, c] = DETOPS_OP(lltm_backward)
                                            .call(grads[0], grad_h, grads.back(), s[0], s[1], s[2],
                                                  s[3], s[4], s[5], s[6], input_wanted, h_wanted);
    return {input_wanted ? input : Variable(), weights, bias, h_wanted ? h : Variable(), c};
  }
};

}  // namespace

std::tuple<Tensor, Tensor> lltm_cell(const Tensor& input, const Tensor& weights, const Tensor& bias,
                                     const Tensor& h, const Tensor& c) {
  DETOPS_CHECK(input.dim() == 2, "lltm_cell", "input must be [B, I], got ", input.sym_sizes());
  if (recorded(input, weights, bias, h, c)) {
    const variable_list results = LltmFunction::apply(input, weights, bias, h, c);
    return {results[0], results[1]};
  }
  const BelowAutograd below;
  auto [output, cells, gates] = DETOPS_OP(lltm_forward).call(input, weights, bias, h, c);
  return {output, as_type(cells, c.scalar_type())};
}

std::tuple<Tensor, Tensor, Tensor> lltm(const Tensor& input, const Tensor& weights,
                                        const Tensor& bias, const Tensor& h, const Tensor& c) {
  DETOPS_CHECK(input.dim() == 3, "lltm", "input must be [T, B, I], got ", input.sym_sizes());
  if (recorded(input, weights, bias, h, c)) {
    const variable_list results = LltmFunction::apply(input, weights, bias, h, c);
    return {results[0], results[1], results[2]};
  }
  const BelowAutograd below;
  auto [output, cells, gates] = DETOPS_OP(lltm_forward).call(input, weights, bias, h, c);
  return {output, last(output, h), last(cells, c)};
}

}  // namespace detops::autograd
