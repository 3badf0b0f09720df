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

// The first of the kept boxes, which are in the order of selection, that suppresses a box, or the
// box itself.
template <typename T>
__global__ void match_kernel(const math::Box<T>* boxes, int64_t count, const int64_t* keep,
                             const int64_t* kept, double threshold, int64_t* match) {
  DETOPS_FOR_EACH(i, count) {
    const math::Box<T> box = boxes[i];
    const T area = math::area(box);
    int64_t found = i;
    for (int64_t k = 0; k < *kept && keep[k] != i; ++k) {
      const math::Box<T> by = boxes[keep[k]];
      if (math::suppresses(by, math::area(by), box, area, threshold)) {
        found = keep[k];
        break;
      }
    }
    match[i] = found;
  }
}

std::tuple<Tensor, Tensor> select(const char* op, const Tensor& boxes, double threshold,
                                  const Wanted& wanted) {
  const Tensor order = selection_order(wanted.scores);
  const Tensor sorted = index_select(boxes.to(compute_type(boxes.scalar_type())), order);
  return DETOPS_WIDE_SWITCH(sorted.scalar_type(), [&] {
    const auto* box = reinterpret_cast<const math::Box<scalar_t>*>(sorted.const_data_ptr());
    return select_boxes(op, order, BoxTest<scalar_t>{box, threshold}, wanted);
  });
}

}  // namespace

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold,
           std::optional<double> score_threshold, std::optional<int64_t> max_output) {
  const Wanted wanted{scores, nullptr, score_threshold, limit_of(boxes, max_output)};
  return without_padding(select("nms", boxes, iou_threshold, wanted));
}

Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold, std::optional<double> score_threshold,
                   std::optional<int64_t> max_output) {
  const Wanted wanted{scores, &idxs, score_threshold, limit_of(boxes, max_output)};
  return without_padding(select("batched_nms", boxes, iou_threshold, wanted));
}

void nms_padded(const Tensor& boxes, const Tensor& scores, const std::optional<Tensor>& idxs,
                double iou_threshold, int64_t max_output, Tensor& keep, Tensor& count) {
  const Wanted wanted{scores, idxs ? &*idxs : nullptr, {}, max_output};
  std::tie(keep, count) = select("nms_padded", boxes, iou_threshold, wanted);
}

void nms_match(const Tensor& boxes, const Tensor& scores, double iou_threshold, Tensor& match) {
  const Wanted all{scores, nullptr, {}, boxes.size(0)};
  const auto [keep, kept] = select("nms_match", boxes, iou_threshold, all);
  const Tensor given = wide(boxes);
  const int64_t *places = keep.const_data_ptr<int64_t>(), *number = kept.const_data_ptr<int64_t>();
  DETOPS_WIDE_SWITCH(given.scalar_type(), [&] {
    launch("nms_match", match_kernel<scalar_t>, blocks_for(match.numel()),
           rows<math::Box, scalar_t>(given), match.numel(), places, number, iou_threshold,
           match.mutable_data_ptr<int64_t>());
  });
}

}  // namespace detops::cuda
