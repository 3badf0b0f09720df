// SPDX-License-Identifier: MIT
#include "nms.cuh"

#include <ATen/Dispatch.h>

#include "../math/box.h"

namespace detops::cuda {
namespace {

template <typename T>
struct BoxTest {
  const math::Box<T>* boxes;  // [N], score descending
  double threshold;

  __device__ bool operator()(int64_t by, int64_t box) const {
    const math::Box<T> a = boxes[by], b = boxes[box];
    return math::suppresses(a, math::area(a), b, math::area(b), threshold);
  }
};

Tensor select(const Tensor& boxes, const Tensor& scores, const Tensor* idxs, double threshold) {
  if (boxes.size(0) == 0) return at::empty({0}, boxes.options().dtype(at::kLong));
  const Tensor order = selection_order(scores);
  const Tensor sorted = boxes.to(compute_type(boxes.scalar_type())).index_select(0, order);
  return AT_DISPATCH_FLOATING_TYPES(sorted.scalar_type(), "detops.nms", [&] {
    const auto* box = reinterpret_cast<const math::Box<scalar_t>*>(sorted.const_data_ptr());
    return select_boxes("nms", order, idxs, BoxTest<scalar_t>{box, threshold});
  });
}

}  // namespace

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  const at::cuda::OptionalCUDAGuard guard(boxes.device());
  meta::check_nms(boxes, scores, std::nullopt, iou_threshold);
  return select(boxes, scores, nullptr, iou_threshold);
}

Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold) {
  const at::cuda::OptionalCUDAGuard guard(boxes.device());
  meta::check_nms(boxes, scores, idxs, iou_threshold);
  return select(boxes, scores, &idxs, iou_threshold);
}

}  // namespace detops::cuda
