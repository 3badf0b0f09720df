// SPDX-License-Identifier: MIT
#pragma once

#include "../tensor.h"

namespace detops {

// Copies the last of `steps` to `last`, or `before` if there are no steps.
inline void copy_last(const Tensor& steps, const Tensor& before, const Tensor& last) {
  const int64_t count = steps.size(0);
  last.copy_(count == 0 ? before : steps.narrow(0, count - 1, 1).view(before.sizes()));
}

}  // namespace detops
