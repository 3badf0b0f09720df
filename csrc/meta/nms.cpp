// SPDX-License-Identifier: MIT
#include <cmath>

#include "../ops.h"
#include "checks.h"

namespace detops::meta {

void check_nms(const Tensor& boxes, const Tensor& scores, const std::optional<Tensor>& idxs,
               double iou_threshold) {
  const char* op = idxs ? "batched_nms" : "nms";
  check_rows(op, "boxes", boxes, 4);
  DETOPS_CHECK(scores.dim() == 1, op, "scores must be [N], got ", scores.sym_sizes());
  check_floating(op, "scores", scores);
  check_same_device(op, "scores", scores, "boxes", boxes);
  check_same_length(op, "scores", scores, "boxes", boxes);
  if (idxs) {
    DETOPS_CHECK(idxs->dim() == 1, op, "idxs must be [N], got ", idxs->sym_sizes());
    DETOPS_CHECK(at::isIntegralType(idxs->scalar_type(), /*includeBool=*/true), op,
                 "idxs must be integers, got ", idxs->scalar_type());
    check_same_device(op, "idxs", *idxs, "boxes", boxes);
    check_same_length(op, "idxs", *idxs, "boxes", boxes);
  }
  DETOPS_CHECK(!std::isnan(iou_threshold), op, "iou_threshold must be a number, got nan");
}

}  // namespace detops::meta
