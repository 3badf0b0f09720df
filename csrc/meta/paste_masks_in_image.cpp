// SPDX-License-Identifier: MIT
#include <cmath>

#include "../ops.h"
#include "checks.h"

namespace detops::meta {

Tensor paste_masks_in_image(const Tensor& masks, const Tensor& boxes, c10::SymInt height,
                            c10::SymInt width, double threshold) {
  const char* op = "paste_masks_in_image";
  const char* expected = "masks must be [N, h, w] or [N, 1, h, w] of at least 1 x 1, got ";
  DETOPS_CHECK(masks.dim() == 3 || masks.dim() == 4, op, expected, masks.sym_sizes());
  TORCH_SYM_CHECK(masks.sym_size(-2).sym_ge(1).sym_and(masks.sym_size(-1).sym_ge(1)), "detops.", op,
                  ": ", expected, masks.sym_sizes());
  if (masks.dim() == 4) {
    TORCH_SYM_CHECK(masks.sym_size(1).sym_eq(1), "detops.", op, ": ", expected, masks.sym_sizes());
  }
  check_floating(op, "masks", masks);
  check_rows(op, "boxes", boxes, 4);
  check_same_length(op, "boxes", boxes, "masks", masks);
  check_same_device(op, "boxes", boxes, "masks", masks);
  TORCH_SYM_CHECK(height.sym_ge(0).sym_and(width.sym_ge(0)), "detops.", op,
                  ": image_shape must be at least 0 x 0, got ", height, " x ", width);
  check_size(op, "image_shape", height);
  check_size(op, "image_shape", width);
  DETOPS_CHECK(!std::isnan(threshold), op, "threshold must be a number, got nan");
  return at::empty_symint({masks.sym_size(0), height, width},
                          masks.options().dtype(threshold >= 0 ? at::kBool : at::kByte));
}

}  // namespace detops::meta
