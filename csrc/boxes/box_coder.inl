// SPDX-License-Identifier: MIT
// The host functions of both backends, each of which has a for_each(op, n, each): it calls each(i)
// for every i below n.

namespace {

template <typename T>
math::Delta<T> coder_weights(ArrayRef<double> w) {
  return {T(w[0]), T(w[1]), T(w[2]), T(w[3])};
}

ScalarType coder_type(const Tensor& a, const Tensor& b) {
  return compute_type(promoted_type(a.scalar_type(), b.scalar_type()));
}

}  // namespace

void encode_boxes_forward(const Tensor& boxes, const Tensor& anchors, ArrayRef<double> weights,
                          Tensor& output) {
  const ScalarType type = coder_type(boxes, anchors);
  const Tensor box = boxes.to(type).contiguous(), anchor = anchors.to(type).contiguous();
  const Tensor deltas = output.to(type);  // itself, unless half precision
  DETOPS_WIDE_SWITCH(type, [&] {
    for_each("encode_boxes", box.size(0),
             math::EncodeBoxes<scalar_t>{
                 rows<math::Box, scalar_t>(box), rows<math::Box, scalar_t>(anchor),
                 coder_weights<scalar_t>(weights), mutable_rows<math::Delta, scalar_t>(deltas)});
  });
  output = as_type(deltas, output.scalar_type());
}

void encode_boxes_backward(const Tensor& grad, const Tensor& boxes, const Tensor& anchors,
                           ArrayRef<double> weights, Tensor& to_boxes, Tensor& to_anchors) {
  const ScalarType type = coder_type(boxes, anchors);
  const Tensor box = boxes.to(type).contiguous(), anchor = anchors.to(type).contiguous();
  const Tensor outer = grad.to(type).contiguous();
  const Tensor to_box = empty_like(box), to_anchor = empty_like(anchor);
  DETOPS_WIDE_SWITCH(type, [&] {
    for_each("encode_boxes_backward", box.size(0),
             math::EncodeBoxesBackward<scalar_t>{
                 rows<math::Box, scalar_t>(box), rows<math::Box, scalar_t>(anchor),
                 coder_weights<scalar_t>(weights), rows<math::Delta, scalar_t>(outer),
                 mutable_rows<math::Box, scalar_t>(to_box),
                 mutable_rows<math::Box, scalar_t>(to_anchor)});
  });
  to_boxes.copy_(to_box);
  to_anchors.copy_(to_anchor);
}

void decode_boxes_forward(const Tensor& deltas, const Tensor& anchors, ArrayRef<double> weights,
                          double clip, Tensor& output) {
  const ScalarType type = coder_type(deltas, anchors);
  const Tensor delta = deltas.to(type).contiguous(), anchor = anchors.to(type).contiguous();
  const Tensor boxes = output.to(type);  // itself, unless half precision
  const int64_t per_anchor = delta.size(1) / 4;
  DETOPS_WIDE_SWITCH(type, [&] {
    for_each("decode_boxes", anchor.size(0) * per_anchor,
             math::DecodeBoxes<scalar_t>{rows<math::Delta, scalar_t>(delta),
                                         rows<math::Box, scalar_t>(anchor), per_anchor,
                                         coder_weights<scalar_t>(weights), scalar_t(clip),
                                         mutable_rows<math::Box, scalar_t>(boxes)});
  });
  output = as_type(boxes, output.scalar_type());
}

void decode_boxes_backward(const Tensor& grad, const Tensor& deltas, const Tensor& anchors,
                           ArrayRef<double> weights, double clip, Tensor& to_deltas,
                           Tensor& to_anchors) {
  const ScalarType type = coder_type(deltas, anchors);
  const Tensor delta = deltas.to(type).contiguous(), anchor = anchors.to(type).contiguous();
  const Tensor outer = grad.to(type).contiguous();
  const Tensor to_delta = empty_like(delta), to_anchor = empty_like(anchor);
  DETOPS_WIDE_SWITCH(type, [&] {
    for_each("decode_boxes_backward", anchor.size(0),
             math::DecodeBoxesBackward<scalar_t>{
                 rows<math::Delta, scalar_t>(delta), rows<math::Box, scalar_t>(anchor),
                 delta.size(1) / 4, coder_weights<scalar_t>(weights), scalar_t(clip),
                 rows<math::Box, scalar_t>(outer), mutable_rows<math::Delta, scalar_t>(to_delta),
                 mutable_rows<math::Box, scalar_t>(to_anchor)});
  });
  to_deltas.copy_(to_delta);
  to_anchors.copy_(to_anchor);
}
