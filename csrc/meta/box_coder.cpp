// SPDX-License-Identifier: MIT
#include <cmath>

#include "../ops.h"
#include "checks.h"

namespace detops::meta {
namespace {

Tensor empty_promoted(const Tensor& like, const Tensor& other) {
  const auto type = at::promote_types(like.scalar_type(), other.scalar_type());
  return at::empty_symint(like.sym_sizes(), like.options().dtype(type));
}

void check_coder(const char* op, const char* name, const Tensor& t, const Tensor& anchors,
                 at::ArrayRef<double> weights) {
  check_floating(op, name, t);
  check_rows(op, "anchors", anchors, 4);
  check_same_device(op, "anchors", anchors, name, t);
  check_same_length(op, "anchors", anchors, name, t);
  DETOPS_CHECK(weights.size() == 4, op, "weights must be 4 numbers, got ", weights.size());
  for (const double w : weights) {
    DETOPS_CHECK(std::isfinite(w) && w > 0, op, "weights must be positive and finite, got ",
                 weights);
  }
}

void check_deltas(const char* op, const Tensor& deltas, const Tensor& anchors,
                  at::ArrayRef<double> weights, double clip) {
  DETOPS_CHECK(deltas.dim() == 2, op, "deltas must be [N, 4k], got ", deltas.sym_sizes());
  TORCH_SYM_CHECK((deltas.sym_size(1) % 4).sym_eq(0), "detops.", op,
                  ": deltas must be [N, 4k], got ", deltas.sym_sizes());
  check_coder(op, "deltas", deltas, anchors, weights);
  DETOPS_CHECK(!std::isnan(clip), op, "clip must be a number, got nan");
}

}  // namespace

Tensor encode_boxes_forward(const Tensor& boxes, const Tensor& anchors,
                            at::ArrayRef<double> weights) {
  check_rows("encode_boxes", "boxes", boxes, 4);
  check_coder("encode_boxes", "boxes", boxes, anchors, weights);
  return empty_promoted(boxes, anchors);
}

std::tuple<Tensor, Tensor> encode_boxes_backward(const Tensor& grad, const Tensor& boxes,
                                                 const Tensor& anchors,
                                                 at::ArrayRef<double> weights) {
  check_grad_like("encode_boxes_backward", grad, encode_boxes_forward(boxes, anchors, weights));
  return {at::empty_symint(boxes.sym_sizes(), boxes.options()),
          at::empty_symint(anchors.sym_sizes(), anchors.options())};
}

Tensor decode_boxes_forward(const Tensor& deltas, const Tensor& anchors,
                            at::ArrayRef<double> weights, double clip) {
  check_deltas("decode_boxes", deltas, anchors, weights, clip);
  return empty_promoted(deltas, anchors);
}

std::tuple<Tensor, Tensor> decode_boxes_backward(const Tensor& grad, const Tensor& deltas,
                                                 const Tensor& anchors,
                                                 at::ArrayRef<double> weights, double clip) {
  check_grad_like("decode_boxes_backward", grad,
                  decode_boxes_forward(deltas, anchors, weights, clip));
  return {at::empty_symint(deltas.sym_sizes(), deltas.options()),
          at::empty_symint(anchors.sym_sizes(), anchors.options())};
}

}  // namespace detops::meta
