// SPDX-License-Identifier: MIT
#include "../boxes/rotated_boxes.cuh"
#include "nms.cuh"

namespace detops::cuda {
namespace {

// T is the type that an IoU is rounded to.
template <typename T>
struct RotatedTest {
  using Item = RotatedBox;
  const RotatedBox* boxes;  // [N], score descending
  double threshold;

  __device__ Item item(int64_t place) const { return boxes[place]; }
  __device__ bool operator()(const Item& by, const Item& box) const {
    return math::suppresses<T>(by, box, threshold);
  }
};

Tensor select(const char* op, const Tensor& boxes, double threshold, const Wanted& wanted) {
  const Tensor order = selection_order(wanted.scores);
  const Tensor sorted = index_select(boxes.to(compute_type(boxes.scalar_type())), order);
  return DETOPS_WIDE_SWITCH(sorted.scalar_type(), [&] {
    const Tensor prepared = rotated_boxes<scalar_t>(sorted);
    const auto* box = reinterpret_cast<const RotatedBox*>(prepared.const_data_ptr());
    const RotatedTest<scalar_t> test{box, threshold};
    return without_padding(select_boxes(op, order, test, wanted));
  });
}

}  // namespace

Tensor nms_rotated(const Tensor& boxes, const Tensor& scores, double iou_threshold,
                   std::optional<double> score_threshold, std::optional<int64_t> max_output) {
  const Wanted wanted{scores, nullptr, score_threshold, limit_of(boxes, max_output)};
  return select("nms_rotated", boxes, iou_threshold, wanted);
}

Tensor batched_nms_rotated(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                           double iou_threshold, std::optional<double> score_threshold,
                           std::optional<int64_t> max_output) {
  const Wanted wanted{scores, &idxs, score_threshold, limit_of(boxes, max_output)};
  return select("batched_nms_rotated", boxes, iou_threshold, wanted);
}

}  // namespace detops::cuda
