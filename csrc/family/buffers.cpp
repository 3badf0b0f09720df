// SPDX-License-Identifier: MIT
#include "../meta/checks.h"
#include "family.h"

namespace detops::family {

void check_buffer(const char* op, const char* name, const Tensor& buffer, const Tensor& like) {
  meta::check_floating(op, name, buffer);
  meta::check_same_device(op, name, buffer, "input", like);
  DETOPS_CHECK(!buffer.is_neg(), op, name, " must not be a view of negated numbers");
}

void write(const Tensor& to, const Tensor& from) {
  if (!to.sym_sizes().equals(from.sym_sizes())) to.resize__symint(from.sym_sizes());
  to.copy_(from);
}

}  // namespace detops::family
