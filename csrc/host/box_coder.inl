// SPDX-License-Identifier: MIT
// Host functions of both backends. Each backend defines for_each(n, each), which calls each(i) for
// every i below n.

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
    const auto *box = rows<math::Box, scalar_t>(in.first),
               *anchor = rows<math::Box, scalar_t>(in.second);
    const auto weight = coder_weights<scalar_t>(weights);
    auto* to = mutable_rows<math::Delta, scalar_t>(output);
    for_each(output.size(0),
             [=] DETOPS_EACH(int64_t i) { to[i] = math::encode(box[i], anchor[i], weight); });
  });
}

void encode_boxes_backward(const Tensor& grad, const Tensor& boxes, const Tensor& anchors,
                           ArrayRef<double> weights, Tensor& to_boxes, Tensor& to_anchors) {
  const BoxListGradients in(grad, boxes, anchors);
  DETOPS_WIDE_SWITCH(in.type(), [&] {
    const auto* g = rows<math::Delta, scalar_t>(in.grad);
    const auto *box = rows<math::Box, scalar_t>(in.first),
               *anchor = rows<math::Box, scalar_t>(in.second);
    const auto weight = coder_weights<scalar_t>(weights);
    auto *to_box = mutable_rows<math::Box, scalar_t>(to_boxes),
         *to_anchor = mutable_rows<math::Box, scalar_t>(to_anchors);
    for_each(in.first.size(0), [=] DETOPS_EACH(int64_t i) {
      math::encode_gradient(box[i], anchor[i], weight, g[i], to_box[i], to_anchor[i]);
    });
  });
}

void decode_boxes_forward(const Tensor& deltas, const Tensor& anchors, ArrayRef<double> weights,
                          double clip, Tensor& output) {
  const BoxLists in(deltas, anchors, output.scalar_type());
  const int64_t per_anchor = deltas.size(1) / 4;
  DETOPS_WIDE_SWITCH(in.type(), [&] {
    const auto* delta = rows<math::Delta, scalar_t>(in.first);
    const auto* anchor = rows<math::Box, scalar_t>(in.second);
    const auto weight = coder_weights<scalar_t>(weights);
    const auto max_log_scale = static_cast<scalar_t>(clip);
    auto* to = mutable_rows<math::Box, scalar_t>(output);
    for_each(anchors.size(0) * per_anchor, [=] DETOPS_EACH(int64_t i) {
      to[i] = math::decode(delta[i], anchor[i / per_anchor], weight, max_log_scale);
    });
  });
}

void decode_boxes_backward(const Tensor& grad, const Tensor& deltas, const Tensor& anchors,
                           ArrayRef<double> weights, double clip, Tensor& to_deltas,
                           Tensor& to_anchors) {
  const BoxListGradients in(grad, deltas, anchors);
  const int64_t per_anchor = deltas.size(1) / 4;
  DETOPS_WIDE_SWITCH(in.type(), [&] {
    const auto* g = rows<math::Box, scalar_t>(in.grad);
    const auto* delta = rows<math::Delta, scalar_t>(in.first);
    const auto* anchor = rows<math::Box, scalar_t>(in.second);
    const auto weight = coder_weights<scalar_t>(weights);
    const auto max_log_scale = static_cast<scalar_t>(clip);
    auto* to_delta = mutable_rows<math::Delta, scalar_t>(to_deltas);
    auto* to_anchor = mutable_rows<math::Box, scalar_t>(to_anchors);
    for_each(anchors.size(0), [=] DETOPS_EACH(int64_t i) {
      const int64_t first = i * per_anchor;
      to_anchor[i] = math::decode_gradient(delta + first, anchor[i], per_anchor, weight,
                                           max_log_scale, g + first, to_delta + first);
    });
  });
}
