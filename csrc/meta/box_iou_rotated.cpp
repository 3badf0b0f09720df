// SPDX-License-Identifier: MIT
#include "../ops.h"
#include "checks.h"

namespace detops::meta {

Tensor box_iou_rotated(const Tensor& boxes1, const Tensor& boxes2) {
  check_rows("box_iou_rotated", "boxes1", boxes1, 5);
  check_rows("box_iou_rotated", "boxes2", boxes2, 5);
  check_same_device("box_iou_rotated", "boxes2", boxes2, "boxes1", boxes1);
  const auto type = at::promote_types(boxes1.scalar_type(), boxes2.scalar_type());
  return at::empty_symint({boxes1.sym_size(0), boxes2.sym_size(0)},
                          boxes1.options().dtype(compute_type(type)));
}

}  // namespace detops::meta
