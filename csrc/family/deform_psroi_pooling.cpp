// SPDX-License-Identifier: MIT
#include <ATen/core/dispatch/Dispatcher.h>

#include "../meta/checks.h"
#include "../ops.h"
#include "family.h"

namespace detops::family {
namespace {

std::optional<Tensor> offset_of(const Tensor& trans, int64_t no_trans) {
  return no_trans ? std::nullopt : std::optional<Tensor>(trans);
}

}  // namespace

void deform_psroi_pooling_forward(const Tensor& input, const Tensor& bbox, const Tensor& trans,
                                  Tensor out, Tensor top_count, int64_t no_trans,
                                  double spatial_scale, int64_t output_dim, int64_t group_size,
                                  int64_t pooled_size, int64_t part_size, int64_t sample_per_part,
                                  double trans_std) {
  constexpr const char* kName = "deform_psroi_pooling_forward";
  check_buffer(kName, "out", out, input);
  check_buffer(kName, "top_count", top_count, input);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("detops::deform_psroi_pool_forward", "")
                             .typed<decltype(meta::deform_psroi_pool_forward)>();
  const auto [output, count] =
      op.call(input, bbox, offset_of(trans, no_trans), spatial_scale, output_dim, group_size,
              pooled_size, pooled_size, part_size, sample_per_part, trans_std);
  write(out, output);
  // One count for all channels of a class here, one for each there.
  write(top_count, count.unsqueeze(2)
                       .expand_symint({-1, -1, output_dim / count.sym_size(1), -1, -1})
                       .flatten(1, 2));
}

void deform_psroi_pooling_backward(const Tensor& out_grad, const Tensor& input, const Tensor& bbox,
                                   const Tensor& trans, const Tensor& top_count, Tensor input_grad,
                                   Tensor trans_grad, int64_t no_trans, double spatial_scale,
                                   int64_t output_dim, int64_t group_size, int64_t pooled_size,
                                   int64_t part_size, int64_t sample_per_part, double trans_std) {
  constexpr const char* kName = "deform_psroi_pooling_backward";
  DETOPS_CHECK(trans.dim() == 4 || no_trans, kName, "trans must be [K, 2 * classes, ", part_size,
               ", ", part_size, "], got ", trans.sym_sizes());
  meta::check_sizes(kName, "out_grad", out_grad,
                    {bbox.sym_size(0), output_dim, pooled_size, pooled_size});
  meta::check_sizes(kName, "top_count", top_count, out_grad.sym_sizes());
  check_buffer(kName, "input_grad", input_grad, input);
  if (!no_trans) check_buffer(kName, "trans_grad", trans_grad, input);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("detops::deform_psroi_pool_backward", "")
                             .typed<decltype(meta::deform_psroi_pool_backward)>();
  const c10::SymInt classes = no_trans ? c10::SymInt(1) : (trans.sym_size(1) / 2).max(1);
  const Tensor count = at::slice_symint(top_count, 1, 0, std::nullopt, output_dim / classes);
  const auto [grad_input, grad_trans] =
      op.call(out_grad, input, bbox, offset_of(trans, no_trans), count, spatial_scale, group_size,
              part_size, sample_per_part, trans_std);
  meta::check_sizes(kName, "input_grad", input_grad, grad_input.sym_sizes());
  if (!no_trans) meta::check_sizes(kName, "trans_grad", trans_grad, grad_trans.sym_sizes());
  input_grad.add_(grad_input);
  if (!no_trans) trans_grad.add_(grad_trans);
}

}  // namespace detops::family
