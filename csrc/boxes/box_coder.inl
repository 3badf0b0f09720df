// SPDX-License-Identifier: MIT
// The host functions of both backends, each of which has a for_each(n, each): it calls each(i)
// for every i below n.

namespace {

template <typename T>
math::Delta<T> coder_weights(ArrayRef<double> w) {
  return {T(w[0]), T(w[1]), T(w[2]), T(w[3])};
}

}  // namespace

void encode_boxes_forward(const Tensor& boxes, const Tensor& anchors, ArrayRef<double> weights,
                          Tensor& output) {
  const BoxLists in(boxes, anchors, output.scalar_type());
  DETOPS_WIDE_SWITCH(in.type(), [&] {
    for_each(output.size(0),
             math::EncodeBoxes<scalar_t>{
                 rows<math::Box, scalar_t>(in.first), rows<math::Box, scalar_t>(in.second),
                 coder_weights<scalar_t>(weights), mutable_rows<math::Delta, scalar_t>(output)});
  });
}

void encode_boxes_backward(const Tensor& grad, const Tensor& boxes, const Tensor& anchors,
                           ArrayRef<double> weights, Tensor& to_boxes, Tensor& to_anchors) {
  const BoxListGradients in(grad, boxes, anchors);
  DETOPS_WIDE_SWITCH(in.type(), [&] {
    for_each(in.first.size(0),
             math::EncodeBoxesBackward<scalar_t>{
                 rows<math::Box, scalar_t>(in.first), rows<math::Box, scalar_t>(in.second),
                 coder_weights<scalar_t>(weights), rows<math::Delta, scalar_t>(in.grad),
                 mutable_rows<math::Box, scalar_t>(to_boxes),
                 mutable_rows<math::Box, scalar_t>(to_anchors)});
  });
}

void decode_boxes_forward(const Tensor& deltas, const Tensor& anchors, ArrayRef<double> weights,
                          double clip, Tensor& output) {
  const BoxLists in(deltas, anchors, output.scalar_type());
  const int64_t per_anchor = deltas.size(1) / 4;
  DETOPS_WIDE_SWITCH(in.type(), [&] {
    for_each(anchors.size(0) * per_anchor,
             math::DecodeBoxes<scalar_t>{rows<math::Delta, scalar_t>(in.first),
                                         rows<math::Box, scalar_t>(in.second), per_anchor,
                                         coder_weights<scalar_t>(weights), scalar_t(clip),
                                         mutable_rows<math::Box, scalar_t>(output)});
  });
}

void decode_boxes_backward(const Tensor& grad, const Tensor& deltas, const Tensor& anchors,
                           ArrayRef<double> weights, double clip, Tensor& to_deltas,
                           Tensor& to_anchors) {
  const BoxListGradients in(grad, deltas, anchors);
  DETOPS_WIDE_SWITCH(in.type(), [&] {
    for_each(anchors.size(0),
             math::DecodeBoxesBackward<scalar_t>{
                 rows<math::Delta, scalar_t>(in.first), rows<math::Box, scalar_t>(in.second),
                 deltas.size(1) / 4, coder_weights<scalar_t>(weights), scalar_t(clip),
                 rows<math::Box, scalar_t>(in.grad), mutable_rows<math::Delta, scalar_t>(to_deltas),
                 mutable_rows<math::Box, scalar_t>(to_anchors)});
  });
}
