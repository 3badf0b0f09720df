// SPDX-License-Identifier: MIT
#include "../../math/box_coder.h"
#include "../../ops.h"
#include "../../rows.h"
#include "../common/launch.cuh"

// One thread per anchor: several deltas of one anchor add into its gradient without atomics.
namespace detops::cuda {
namespace {

template <typename T>
struct CoderParams {
  const math::Delta<T>* deltas;  // [N * k]
  const math::Box<T>* boxes;     // [N]
  const math::Box<T>* anchors;   // [N]
  int64_t count;                 // N
  int64_t per_anchor;            // k
  math::Delta<T> weights;
  T clip;
};

template <typename T>
__global__ void encode_boxes_kernel(CoderParams<T> p, math::Delta<T>* out) {
  DETOPS_FOR_EACH(i, p.count) { out[i] = math::encode(p.boxes[i], p.anchors[i], p.weights); }
}

template <typename T>
__global__ void encode_boxes_backward_kernel(CoderParams<T> p, const math::Delta<T>* grad,
                                             math::Box<T>* grad_boxes, math::Box<T>* grad_anchors) {
  DETOPS_FOR_EACH(i, p.count) {
    math::encode_gradient(p.boxes[i], p.anchors[i], p.weights, grad[i], grad_boxes[i],
                          grad_anchors[i]);
  }
}

template <typename T>
__global__ void decode_boxes_kernel(CoderParams<T> p, math::Box<T>* out) {
  DETOPS_FOR_EACH(i, p.count * p.per_anchor) {
    out[i] = math::decode(p.deltas[i], p.anchors[i / p.per_anchor], p.weights, p.clip);
  }
}

template <typename T>
__global__ void decode_boxes_backward_kernel(CoderParams<T> p, const math::Box<T>* grad,
                                             math::Delta<T>* grad_deltas,
                                             math::Box<T>* grad_anchors) {
  DETOPS_FOR_EACH(i, p.count) {
    math::Box<T> sum{};
    for (int64_t j = i * p.per_anchor; j < (i + 1) * p.per_anchor; ++j) {
      math::decode_gradient(p.deltas[j], p.anchors[i], p.weights, p.clip, grad[j], grad_deltas[j],
                            sum);
    }
    grad_anchors[i] = sum;
  }
}

template <typename T>
CoderParams<T> coder_params(const Tensor& anchors, ArrayRef<double> w) {
  CoderParams<T> p{};
  p.anchors = reinterpret_cast<const math::Box<T>*>(anchors.const_data_ptr<T>());
  p.count = anchors.size(0);
  p.per_anchor = 1;
  p.weights = {T(w[0]), T(w[1]), T(w[2]), T(w[3])};
  return p;
}

}  // namespace

void encode_boxes_forward(const Tensor& boxes, const Tensor& anchors, ArrayRef<double> weights,
                          Tensor& output) {
  const ScalarType type = compute_type(boxes, anchors);
  const Tensor box = boxes.to(type).contiguous(), anchor = anchors.to(type).contiguous();
  const Tensor deltas = output.to(type);  // itself, unless half precision
  DETOPS_WIDE_SWITCH(type, [&] {
    auto p = coder_params<scalar_t>(anchor, weights);
    p.boxes = rows<math::Box, scalar_t>(box);
    launch("encode_boxes", encode_boxes_kernel<scalar_t>, blocks_for(p.count), p,
           mutable_rows<math::Delta, scalar_t>(deltas));
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
    auto p = coder_params<scalar_t>(anchor, weights);
    p.boxes = rows<math::Box, scalar_t>(box);
    launch("encode_boxes_backward", encode_boxes_backward_kernel<scalar_t>, blocks_for(p.count), p,
           rows<math::Delta, scalar_t>(outer), mutable_rows<math::Box, scalar_t>(to_box),
           mutable_rows<math::Box, scalar_t>(to_anchor));
  });
  to_boxes.copy_(to_box);
  to_anchors.copy_(to_anchor);
}

void decode_boxes_forward(const Tensor& deltas, const Tensor& anchors, ArrayRef<double> weights,
                          double clip, Tensor& output) {
  const ScalarType type = compute_type(deltas, anchors);
  const Tensor delta = deltas.to(type).contiguous(), anchor = anchors.to(type).contiguous();
  const Tensor boxes = output.to(type);  // itself, unless half precision
  DETOPS_WIDE_SWITCH(type, [&] {
    auto p = coder_params<scalar_t>(anchor, weights);
    p.deltas = rows<math::Delta, scalar_t>(delta);
    p.per_anchor = delta.size(1) / 4;
    p.clip = static_cast<scalar_t>(clip);
    launch("decode_boxes", decode_boxes_kernel<scalar_t>, blocks_for(p.count * p.per_anchor), p,
           mutable_rows<math::Box, scalar_t>(boxes));
  });
  output = as_type(boxes, output.scalar_type());
}

void decode_boxes_backward(const Tensor& grad, const Tensor& deltas, const Tensor& anchors,
                           ArrayRef<double> weights, double clip, Tensor& to_deltas,
                           Tensor& to_anchors) {
  if (to_deltas.numel() == 0) {
    to_anchors.zero_();
    return;
  }
  const ScalarType type = compute_type(deltas, anchors);
  const Tensor delta = deltas.to(type).contiguous(), anchor = anchors.to(type).contiguous();
  const Tensor outer = grad.to(type).contiguous();
  const Tensor to_delta = empty_like(delta), to_anchor = empty_like(anchor);
  DETOPS_WIDE_SWITCH(type, [&] {
    auto p = coder_params<scalar_t>(anchor, weights);
    p.deltas = rows<math::Delta, scalar_t>(delta);
    p.per_anchor = delta.size(1) / 4;
    p.clip = static_cast<scalar_t>(clip);
    launch("decode_boxes_backward", decode_boxes_backward_kernel<scalar_t>, blocks_for(p.count), p,
           rows<math::Box, scalar_t>(outer), mutable_rows<math::Delta, scalar_t>(to_delta),
           mutable_rows<math::Box, scalar_t>(to_anchor));
  });
  to_deltas.copy_(to_delta);
  to_anchors.copy_(to_anchor);
}

}  // namespace detops::cuda
