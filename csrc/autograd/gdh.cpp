// SPDX-License-Identifier: MIT
#include "function.h"

namespace detops::autograd {
namespace {

struct GdhFunction : torch::autograd::Function<GdhFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    const BelowAutograd below;
    ctx->saved_data["sizes"] = x.sym_sizes();
    return DETOPS_OP(gdh_forward).call(x);
  }

  // Elements keep their values and change their places only: so do gradients.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0].reshape_symint(ctx->saved_data["sizes"].toSymIntVector())};
  }
};

}  // namespace

// A contiguous tensor is viewed, by ATen: view knows how to tell autograd and functionalization
// that memory is shared. Any other is copied, by our kernel.
Tensor gdh(const Tensor& x) {
  meta::check_gdh(x);
  if (x.is_contiguous()) return x.view(-1);
  if (recorded(x)) return GdhFunction::apply(x);
  const BelowAutograd below;
  return DETOPS_OP(gdh_forward).call(x);
}

}  // namespace detops::autograd
