// SPDX-License-Identifier: MIT
#include "nms.cuh"

#include "../../math/box.h"

namespace detops::cuda {
namespace {

template <typename T>
struct BoxTest {
  struct alignas(4 * sizeof(T)) Item {
    math::Box<T> box;
    T area;
  };
  const math::Box<T>* boxes;  // [N], score descending
  double threshold;

  __device__ Item item(int64_t place) const { return {boxes[place], math::area(boxes[place])}; }
  __device__ bool operator()(const Item& by, const Item& box) const {
    return math::suppresses(by.box, by.area, box.box, box.area, threshold);
  }
};

std::tuple<Tensor, Tensor> select(const char* op, const Tensor& boxes, const Tensor& scores,
                                  const Tensor* idxs, double threshold, int64_t limit) {
  const Tensor order = selection_order(scores);
  const Tensor sorted = index_select(boxes.to(compute_type(boxes.scalar_type())), order);
  return DETOPS_WIDE_SWITCH(sorted.scalar_type(), [&] {
    const auto* box = reinterpret_cast<const math::Box<scalar_t>*>(sorted.const_data_ptr());
    return select_boxes(op, order, idxs, BoxTest<scalar_t>{box, threshold}, limit);
  });
}

}  // namespace

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  return without_padding(select("nms", boxes, scores, nullptr, iou_threshold, boxes.size(0)));
}

Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold) {
  return without_padding(select("batched_nms", boxes, scores, &idxs, iou_threshold, boxes.size(0)));
}

void nms_padded(const Tensor& boxes, const Tensor& scores, const std::optional<Tensor>& idxs,
                double iou_threshold, int64_t max_output, Tensor& keep, Tensor& count) {
  std::tie(keep, count) =
      select("nms_padded", boxes, scores, idxs ? &*idxs : nullptr, iou_threshold, max_output);
}

}  // namespace detops::cuda
