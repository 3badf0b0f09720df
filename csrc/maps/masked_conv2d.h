// SPDX-License-Identifier: MIT
#pragma once

#include "../deform/geometry.h"
#include "../ops.h"

namespace detops {

// mask > 0 as bool: of any dtype that the contract takes.
inline Tensor positive(const Tensor& mask) {
  const ScalarType type = mask.scalar_type();
  // PyTorch compares no wider unsigned integers; of them, all but 0 are above it.
  if (is_discrete(type) && !is_integer(type)) return as_type(mask, kBool).contiguous();
  return call::op("aten::gt", "Tensor", mask, zeros({}, mask.options())).contiguous();
}

}  // namespace detops
