// SPDX-License-Identifier: MIT
#include "../ops.h"
#include "checks.h"

namespace detops {

math::Overlap overlap_kind(const char* op, c10::string_view kind) {
  if (kind == "iou") return math::Overlap::kIoU;
  if (kind == "giou") return math::Overlap::kGIoU;
  if (kind == "diou") return math::Overlap::kDIoU;
  TORCH_CHECK(kind == "ciou", "detops.", op, ": kind must be iou, giou, diou or ciou, got ", kind);
  return math::Overlap::kCIoU;
}

}  // namespace detops

namespace detops::meta {

Tensor box_iou_forward(const Tensor& boxes1, const Tensor& boxes2, c10::string_view kind, double) {
  constexpr const char* kNames[] = {"box_iou", "generalized_box_iou", "distance_box_iou",
                                    "complete_box_iou"};
  const char* op = kNames[static_cast<int>(overlap_kind("box_iou_forward", kind))];
  check_rows(op, "boxes1", boxes1, 4);
  check_rows(op, "boxes2", boxes2, 4);
  check_same_device(op, "boxes2", boxes2, "boxes1", boxes1);
  // An IoU is worth more bits than half precision has, whatever the boxes are.
  const auto type = at::promote_types(boxes1.scalar_type(), boxes2.scalar_type());
  return at::empty_symint({boxes1.sym_size(0), boxes2.sym_size(0)},
                          boxes1.options().dtype(compute_type(type)));
}

std::tuple<Tensor, Tensor> box_iou_backward(const Tensor& grad, const Tensor& boxes1,
                                            const Tensor& boxes2, c10::string_view kind,
                                            double eps) {
  check_grad_like("box_iou_backward", grad, box_iou_forward(boxes1, boxes2, kind, eps));
  return {at::empty_symint(boxes1.sym_sizes(), boxes1.options()),
          at::empty_symint(boxes2.sym_sizes(), boxes2.options())};
}

std::tuple<Tensor, Tensor> match_boxes(const Tensor& boxes1, const Tensor& boxes2) {
  check_rows("match_boxes", "boxes1", boxes1, 4);
  check_rows("match_boxes", "boxes2", boxes2, 4);
  check_same_device("match_boxes", "boxes2", boxes2, "boxes1", boxes1);
  const auto type = at::promote_types(boxes1.scalar_type(), boxes2.scalar_type());
  return {at::empty_symint({boxes1.sym_size(0)}, boxes1.options().dtype(compute_type(type))),
          at::empty_symint({boxes1.sym_size(0)}, boxes1.options().dtype(at::kLong))};
}

}  // namespace detops::meta
