// SPDX-License-Identifier: MIT
#include "nms.cuh"

#include "../../math/polygon.h"
#include "../boxes/rotated_boxes.cuh"

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

// The test of boxes that are prepared for it. T is the type that an IoU is rounded to.
template <typename T, typename Box>
struct PreparedTest {
  using Item = Box;
  const Box* boxes;  // [N], score descending
  double threshold;

  __device__ Item item(int64_t place) const { return boxes[place]; }
  __device__ bool operator()(const Item& by, const Item& box) const {
    return math::suppresses<T>(by, box, threshold);
  }
};

Tensor sorted_boxes(const Tensor& boxes, const Tensor& order) {
  return index_select(boxes.to(compute_type(boxes.scalar_type())), order);
}

std::tuple<Tensor, Tensor> select(const Tensor& boxes, double threshold, const Wanted& wanted) {
  const Tensor order = selection_order(wanted.scores), sorted = sorted_boxes(boxes, order);
  return DETOPS_WIDE_SWITCH(sorted.scalar_type(), [&] {
    return select_boxes(order, BoxTest<scalar_t>{elements(sorted), threshold}, wanted);
  });
}

Tensor select_rotated(const Tensor& boxes, double threshold, const Wanted& wanted) {
  const Tensor order = selection_order(wanted.scores), sorted = sorted_boxes(boxes, order);
  return DETOPS_WIDE_SWITCH(sorted.scalar_type(), [&] {
    const Tensor prepared = rotated_boxes<scalar_t>(sorted);
    const PreparedTest<scalar_t, RotatedBox> test{elements(prepared), threshold};
    return without_padding(select_boxes(order, test, wanted));
  });
}

}  // namespace

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold,
           std::optional<double> score_threshold, std::optional<int64_t> max_output) {
  const Wanted wanted{scores, nullptr, score_threshold, limit_of(boxes, max_output)};
  return without_padding(select(boxes, iou_threshold, wanted));
}

Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold, std::optional<double> score_threshold,
                   std::optional<int64_t> max_output) {
  const Wanted wanted{scores, &idxs, score_threshold, limit_of(boxes, max_output)};
  return without_padding(select(boxes, iou_threshold, wanted));
}

Tensor nms_rotated(const Tensor& boxes, const Tensor& scores, double iou_threshold,
                   std::optional<double> score_threshold, std::optional<int64_t> max_output) {
  const Wanted wanted{scores, nullptr, score_threshold, limit_of(boxes, max_output)};
  return select_rotated(boxes, iou_threshold, wanted);
}

Tensor batched_nms_rotated(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                           double iou_threshold, std::optional<double> score_threshold,
                           std::optional<int64_t> max_output) {
  const Wanted wanted{scores, &idxs, score_threshold, limit_of(boxes, max_output)};
  return select_rotated(boxes, iou_threshold, wanted);
}

Tensor nms_quadri(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  const Tensor order = selection_order(scores), sorted = sorted_boxes(boxes, order);
  const Tensor prepared = empty(sorted.sizes(), sorted.options().dtype(kDouble));
  auto* quads = reinterpret_cast<math::Quad*>(prepared.mutable_data_ptr<double>());
  return DETOPS_WIDE_SWITCH(sorted.scalar_type(), [&] {
    const scalar_t* corners = elements(sorted);
    for_each(sorted.size(0), [=] __device__(int64_t i) { quads[i] = math::quad(corners + 8 * i); });
    const PreparedTest<scalar_t, math::Quad> test{quads, iou_threshold};
    return without_padding(select_boxes(order, test, {scores, nullptr, {}, boxes.size(0)}));
  });
}

void nms_padded(const Tensor& boxes, const Tensor& scores, const std::optional<Tensor>& idxs,
                double iou_threshold, int64_t max_output, Tensor& keep, Tensor& count) {
  const Wanted wanted{scores, idxs ? &*idxs : nullptr, {}, max_output};
  std::tie(keep, count) = select(boxes, iou_threshold, wanted);
}

void nms_match(const Tensor& boxes, const Tensor& scores, double iou_threshold, Tensor& match) {
  const Wanted all{scores, nullptr, {}, boxes.size(0)};
  const auto [keep, kept] = select(boxes, iou_threshold, all);
  const Tensor given = wide(boxes);
  const int64_t *places = elements(keep), *number = elements(kept);
  int64_t* to = elements(match);
  DETOPS_WIDE_SWITCH(given.scalar_type(), [&] {
    const math::Box<scalar_t>* box = elements(given);
    // The first of the kept boxes, which are in the order of selection, that suppresses a box, or
    // the box itself.
    for_each(match.numel(), [=] __device__(int64_t i) {
      const math::Box<scalar_t> own = box[i];
      const scalar_t area = math::area(own);
      int64_t k = 0;
      for (; k < *number && places[k] != i; ++k) {
        const math::Box<scalar_t> by = box[places[k]];
        if (math::suppresses(by, math::area(by), own, area, iou_threshold)) break;
      }
      to[i] = k < *number ? places[k] : i;
    });
  });
}

}  // namespace detops::cuda
