// SPDX-License-Identifier: MIT
#include "../ops.h"
#include "checks.h"

namespace detops::meta {

Tensor box_iou_loss_forward(const Tensor& boxes1, const Tensor& boxes2, c10::string_view kind,
                            double) {
  constexpr const char* kNames[] = {"box_iou_loss", "generalized_box_iou_loss",
                                    "distance_box_iou_loss", "complete_box_iou_loss"};
  const char* op = kNames[static_cast<int>(overlap_kind("box_iou_loss_forward", kind))];
  DETOPS_CHECK(boxes1.dim() >= 1, op, "boxes1 must be [..., 4], got ", boxes1.sym_sizes());
  TORCH_SYM_CHECK(boxes1.sym_size(-1).sym_eq(4), "detops.", op, ": boxes1 must be [..., 4], got ",
                  boxes1.sym_sizes());
  check_floating(op, "boxes1", boxes1);
  check_like(op, "boxes2", boxes2, "boxes1", boxes1);
  // Products of half precision sides overflow from 256 pixels on.
  const auto type = at::promote_types(boxes1.scalar_type(), boxes2.scalar_type());
  return at::empty_symint(boxes1.sym_sizes().slice(0, boxes1.dim() - 1),
                          boxes1.options().dtype(compute_type(type)));
}

std::tuple<Tensor, Tensor> box_iou_loss_backward(const Tensor& grad, const Tensor& boxes1,
                                                 const Tensor& boxes2, c10::string_view kind,
                                                 double eps) {
  check_grad_like("box_iou_loss_backward", grad, box_iou_loss_forward(boxes1, boxes2, kind, eps));
  return {at::empty_symint(boxes1.sym_sizes(), boxes1.options()),
          at::empty_symint(boxes2.sym_sizes(), boxes2.options())};
}

}  // namespace detops::meta
