// SPDX-License-Identifier: MIT
#include "../ops.h"
#include "checks.h"

namespace detops::meta {

Tensor masks_to_boxes(const Tensor& masks) {
  const char* op = "masks_to_boxes";
  DETOPS_CHECK(masks.dim() == 3, op, "masks must be [N, H, W], got ", masks.sym_sizes());
  const auto type = masks.scalar_type();
  DETOPS_CHECK(is_discrete(type) || is_float(type), op,
               "masks must be bool, an integer or float32, float64, float16 or bfloat16, got ",
               type);
  return at::empty_symint({masks.sym_size(0), 4}, masks.options().dtype(at::kFloat));
}

}  // namespace detops::meta
