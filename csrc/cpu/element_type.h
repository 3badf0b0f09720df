// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "../math/half.h"

namespace detops::cpu {

// Calls run(T{}) with the kernels' type for a tensor's.
template <typename Run>
void with_element_type(at::ScalarType type, Run&& run) {
  switch (type) {
    case at::kDouble:
      return run(double());
    case at::kHalf:
      return run(Half());
    case at::kBFloat16:
      return run(BFloat16());
    case at::kFloat:
      return run(float());
    default:
      TORCH_CHECK(false, "detops: no kernel takes ", type);
  }
}

}  // namespace detops::cpu
