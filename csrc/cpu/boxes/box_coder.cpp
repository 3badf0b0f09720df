// SPDX-License-Identifier: MIT
#include "../../math/box_coder.h"
#include "../../ops.h"
#include "../../rows.h"

namespace detops::cpu {
namespace {

constexpr int64_t kGrain = 4096;

template <typename T>
math::Delta<T> coder_weights(ArrayRef<double> w) {
  return {T(w[0]), T(w[1]), T(w[2]), T(w[3])};
}

}  // namespace

void encode_boxes_forward(const Tensor& boxes, const Tensor& anchors, ArrayRef<double> weights,
                          Tensor& output) {
  const ScalarType type = compute_type(boxes, anchors);
  const Tensor box = boxes.to(type).contiguous(), anchor = anchors.to(type).contiguous();
  const Tensor deltas = output.to(type);  // itself, unless half precision
  DETOPS_WIDE_SWITCH(type, [&] {
    const auto* b = rows<math::Box, scalar_t>(box);
    const auto* a = rows<math::Box, scalar_t>(anchor);
    auto* out = mutable_rows<math::Delta, scalar_t>(deltas);
    const auto w = coder_weights<scalar_t>(weights);
    parallel_for(0, box.size(0), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = math::encode(b[i], a[i], w);
    });
  });
  output = as_type(deltas, output.scalar_type());
}

void encode_boxes_backward(const Tensor& grad, const Tensor& boxes, const Tensor& anchors,
                           ArrayRef<double> weights, Tensor& to_boxes, Tensor& to_anchors) {
  const ScalarType type = compute_type(boxes, anchors);
  const Tensor box = boxes.to(type).contiguous(), anchor = anchors.to(type).contiguous();
  const Tensor outer = grad.to(type).contiguous();
  const Tensor to_box = empty_like(box), to_anchor = empty_like(anchor);
  DETOPS_WIDE_SWITCH(type, [&] {
    const auto* b = rows<math::Box, scalar_t>(box);
    const auto* a = rows<math::Box, scalar_t>(anchor);
    const auto* g = rows<math::Delta, scalar_t>(outer);
    auto* gb = mutable_rows<math::Box, scalar_t>(to_box);
    auto* ga = mutable_rows<math::Box, scalar_t>(to_anchor);
    const auto w = coder_weights<scalar_t>(weights);
    parallel_for(0, box.size(0), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        math::encode_gradient(b[i], a[i], w, g[i], gb[i], ga[i]);
      }
    });
  });
  to_boxes.copy_(to_box);
  to_anchors.copy_(to_anchor);
}

void decode_boxes_forward(const Tensor& deltas, const Tensor& anchors, ArrayRef<double> weights,
                          double clip, Tensor& output) {
  const ScalarType type = compute_type(deltas, anchors);
  const Tensor delta = deltas.to(type).contiguous(), anchor = anchors.to(type).contiguous();
  const Tensor boxes = output.to(type);  // itself, unless half precision
  const int64_t per_anchor = delta.size(1) / 4;
  DETOPS_WIDE_SWITCH(type, [&] {
    const auto* d = rows<math::Delta, scalar_t>(delta);
    const auto* a = rows<math::Box, scalar_t>(anchor);
    auto* out = mutable_rows<math::Box, scalar_t>(boxes);
    const auto w = coder_weights<scalar_t>(weights);
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, per_anchor));
    parallel_for(0, anchor.size(0), grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * per_anchor; i < end * per_anchor; ++i) {
        out[i] = math::decode(d[i], a[i / per_anchor], w, scalar_t(clip));
      }
    });
  });
  output = as_type(boxes, output.scalar_type());
}

void decode_boxes_backward(const Tensor& grad, const Tensor& deltas, const Tensor& anchors,
                           ArrayRef<double> weights, double clip, Tensor& to_deltas,
                           Tensor& to_anchors) {
  const ScalarType type = compute_type(deltas, anchors);
  const Tensor delta = deltas.to(type).contiguous(), anchor = anchors.to(type).contiguous();
  const Tensor outer = grad.to(type).contiguous();
  const Tensor to_delta = empty_like(delta), to_anchor = zeros_like(anchor);
  const int64_t per_anchor = delta.size(1) / 4;
  DETOPS_WIDE_SWITCH(type, [&] {
    const auto* d = rows<math::Delta, scalar_t>(delta);
    const auto* a = rows<math::Box, scalar_t>(anchor);
    const auto* g = rows<math::Box, scalar_t>(outer);
    auto* gd = mutable_rows<math::Delta, scalar_t>(to_delta);
    auto* ga = mutable_rows<math::Box, scalar_t>(to_anchor);
    const auto w = coder_weights<scalar_t>(weights);
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, per_anchor));
    parallel_for(0, anchor.size(0), grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = i * per_anchor; j < (i + 1) * per_anchor; ++j) {
          math::decode_gradient(d[j], a[i], w, scalar_t(clip), g[j], gd[j], ga[i]);
        }
      }
    });
  });
  to_deltas.copy_(to_delta);
  to_anchors.copy_(to_anchor);
}

}  // namespace detops::cpu
