// SPDX-License-Identifier: MIT
#include <ATen/core/dispatch/Dispatcher.h>

#include "../meta/checks.h"
#include "family.h"

namespace detops::family {
namespace {

using Forward = Tensor(const Tensor&, const Tensor&, double, double);
using Backward = Tensor(const Tensor&, const Tensor&, const Tensor&, double, double);

// [N, C]: 1 in the column of a row's class.
Tensor one_hot(const char* op, const Tensor& logits, const Tensor& targets, int64_t num_classes) {
  using namespace meta;
  check_floating(op, "logits", logits);
  check_sizes(op, "logits", logits, {logits.sym_size(0), num_classes});
  check_sizes(op, "targets", targets, {logits.sym_size(0)});
  DETOPS_CHECK(is_integer(targets.scalar_type()), op, "targets must be integers, got ",
               targets.scalar_type());
  const Tensor classes = at::arange(1, num_classes + 1, targets.options().dtype(at::kLong));
  return targets.unsqueeze(1).eq(classes).to(logits.scalar_type());
}

Tensor without_ignored(const Tensor& rows, const Tensor& targets) {
  return rows.masked_fill(targets.lt(0).unsqueeze(1), 0);
}

}  // namespace

Tensor sigmoid_focalloss_forward(const Tensor& logits, const Tensor& targets, int64_t num_classes,
                                 double gamma, double alpha) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("detops::sigmoid_focal_loss_forward", "")
                             .typed<Forward>();
  const Tensor dense = one_hot("sigmoid_focalloss_forward", logits, targets, num_classes);
  return without_ignored(op.call(logits, dense, alpha, gamma), targets);
}

Tensor sigmoid_focalloss_backward(const Tensor& logits, const Tensor& targets,
                                  const Tensor& d_losses, int64_t num_classes, double gamma,
                                  double alpha) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("detops::sigmoid_focal_loss_backward", "")
                             .typed<Backward>();
  const Tensor dense = one_hot("sigmoid_focalloss_backward", logits, targets, num_classes);
  return without_ignored(op.call(d_losses, logits, dense, alpha, gamma), targets);
}

}  // namespace detops::family
