// SPDX-License-Identifier: MIT
#include "function.h"

namespace detops::autograd {
namespace {

struct MlpFunction : torch::autograd::Function<MlpFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const Tensor& hidden_weights,
                        const Tensor& hidden_bias, const Tensor& output_weights,
                        const Tensor& output_bias) {
    const BelowAutograd below;
    auto [output, hidden] =
        DETOPS_OP(mlp_forward)
            .call(input, hidden_weights, hidden_bias, output_weights, output_bias);
    ctx->save_for_backward({input, hidden, hidden_weights, output_weights});
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Once once;
    const variable_list saved = ctx->get_saved_variables();
    const bool input_wanted = ctx->needs_input_grad(0);
    auto [input, hidden_weights, hidden_bias, output_weights, output_bias] =
        DETOPS_OP(mlp_backward)
            .call(grads[0], saved[0], saved[1], saved[2], saved[3], input_wanted);
    return {input_wanted ? input : Variable(), hidden_weights, hidden_bias, output_weights,
            output_bias};
  }
};

}  // namespace

Tensor mlp(const Tensor& input, const Tensor& hidden_weights, const Tensor& hidden_bias,
           const Tensor& output_weights, const Tensor& output_bias) {
  if (recorded(input, hidden_weights, hidden_bias, output_weights, output_bias)) {
    return MlpFunction::apply(input, hidden_weights, hidden_bias, output_weights, output_bias);
  }
  const BelowAutograd below;
  return std::get<0>(
      DETOPS_OP(mlp_forward).call(input, hidden_weights, hidden_bias, output_weights, output_bias));
}

}  // namespace detops::autograd
