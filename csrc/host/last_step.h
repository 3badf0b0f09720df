// SPDX-License-Identifier: MIT
#pragma once

#include "../tensor.h"

namespace detops {

// Copies the last of `steps` to `last`, or `initial` if there are no steps.
inline void copy_last(const Tensor& steps, const Tensor& initial, const Tensor& last) {
  const int64_t count = steps.size(0);
  last.copy_(count == 0 ? initial : steps.narrow(0, count - 1, 1).view(initial.sizes()));
}

}  // namespace detops
