// SPDX-License-Identifier: MIT
#include <ATen/Dispatch.h>

#include "nms.cuh"
#include "rotated_boxes.cuh"

namespace detops::cuda {
namespace {

// T is the type that an IoU is rounded to.
template <typename T>
struct RotatedTest {
  const RotatedBox* boxes;  // [N], score descending
  double threshold;

  __device__ bool operator()(int64_t by, int64_t box) const {
    return math::suppresses<T>(boxes[by], boxes[box], threshold);
  }
};

Tensor select(const Tensor& boxes, const Tensor& scores, const Tensor* idxs, double threshold) {
  if (boxes.size(0) == 0) return at::empty({0}, boxes.options().dtype(at::kLong));
  const Tensor order = selection_order(scores);
  const Tensor sorted = boxes.to(compute_type(boxes.scalar_type())).index_select(0, order);
  return AT_DISPATCH_FLOATING_TYPES(sorted.scalar_type(), "detops.nms_rotated", [&] {
    const Tensor prepared = rotated_boxes<scalar_t>(sorted);
    const auto* box = reinterpret_cast<const RotatedBox*>(prepared.const_data_ptr());
    return select_boxes("nms_rotated", order, idxs, RotatedTest<scalar_t>{box, threshold});
  });
}

}  // namespace

Tensor nms_rotated(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  const at::cuda::OptionalCUDAGuard guard(boxes.device());
  meta::check_nms(boxes, scores, std::nullopt, iou_threshold, 5);
  return select(boxes, scores, nullptr, iou_threshold);
}

Tensor batched_nms_rotated(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                           double iou_threshold) {
  const at::cuda::OptionalCUDAGuard guard(boxes.device());
  meta::check_nms(boxes, scores, idxs, iou_threshold, 5);
  return select(boxes, scores, &idxs, iou_threshold);
}

}  // namespace detops::cuda
