// SPDX-License-Identifier: MIT
#include "nms.cuh"

#include "../../math/polygon.h"
#include "../../math/rotated_box.h"

namespace detops::cuda {
namespace {

// Suppression tests, see nms.cuh. The IoU is rounded to T. A box has kNumbers elements.
template <typename T>
struct BoxTest {
  static constexpr int kNumbers = 4;
  struct alignas(4 * sizeof(T)) Item : math::Box<T> {};
  double threshold;

  static __device__ Item item(const T* b) { return {{b[0], b[1], b[2], b[3]}}; }
  __device__ bool operator()(const Item& by, const Item& box) const {
    return math::suppresses(by, box, math::area(box), threshold);
  }
};

template <typename T>
struct RotatedTest {
  static constexpr int kNumbers = 5;
  using Item = math::RotatedBox<double>;
  double threshold;

  static __device__ Item item(const T* numbers) { return math::rotated_box(numbers); }
  __device__ bool operator()(const Item& by, const Item& box) const {
    return math::suppresses<T>(by, box, threshold);
  }
};

template <typename T>
struct QuadTest {
  static constexpr int kNumbers = 8;
  using Item = math::Quad;
  double threshold;

  static __device__ Item item(const T* corners) { return math::quad(corners); }
  __device__ bool operator()(const Item& by, const Item& box) const {
    return math::suppresses<T>(by, box, threshold);
  }
};

template <template <typename> class TestOf>
Selected select(const Tensor& boxes, double threshold, const Wanted& wanted) {
  const Tensor rows = boxes.contiguous();
  return DETOPS_FLOAT_SWITCH(rows.scalar_type(), [&] {
    using Test = TestOf<accumulate_t<scalar_t>>;
    const scalar_t* row = elements(rows);
    const auto item_of = [=] __device__(int64_t box) {
      accumulate_t<scalar_t> numbers[Test::kNumbers];
      for (int k = 0; k < Test::kNumbers; ++k) numbers[k] = row[box * Test::kNumbers + k];
      return Test::item(numbers);
    };
    return select_boxes(Test{threshold}, item_of, wanted);
  });
}

}  // namespace

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold,
           std::optional<double> score_threshold, std::optional<int64_t> max_output) {
  const Wanted wanted{scores, nullptr, score_threshold, limit_of(boxes, max_output)};
  return without_padding(select<BoxTest>(boxes, iou_threshold, wanted));
}

Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold, std::optional<double> score_threshold,
                   std::optional<int64_t> max_output) {
  const Wanted wanted{scores, &idxs, score_threshold, limit_of(boxes, max_output)};
  return without_padding(select<BoxTest>(boxes, iou_threshold, wanted));
}

Tensor nms_rotated(const Tensor& boxes, const Tensor& scores, double iou_threshold,
                   std::optional<double> score_threshold, std::optional<int64_t> max_output) {
  const Wanted wanted{scores, nullptr, score_threshold, limit_of(boxes, max_output)};
  return without_padding(select<RotatedTest>(boxes, iou_threshold, wanted));
}

Tensor batched_nms_rotated(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                           double iou_threshold, std::optional<double> score_threshold,
                           std::optional<int64_t> max_output) {
  const Wanted wanted{scores, &idxs, score_threshold, limit_of(boxes, max_output)};
  return without_padding(select<RotatedTest>(boxes, iou_threshold, wanted));
}

Tensor nms_quadri(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  const Wanted all{scores, nullptr, {}, boxes.size(0)};
  return without_padding(select<QuadTest>(boxes, iou_threshold, all));
}

void nms_padded(const Tensor& boxes, const Tensor& scores, const std::optional<Tensor>& idxs,
                double iou_threshold, int64_t max_output, Tensor& keep, Tensor& count) {
  const Wanted wanted{scores, idxs ? &*idxs : nullptr, {}, max_output};
  const Selected selected = select<BoxTest>(boxes, iou_threshold, wanted);
  keep = selected.keep;
  count = selected.number;
}

void nms_match(const Tensor& boxes, const Tensor& scores, double iou_threshold, Tensor& match) {
  const Wanted all{scores, nullptr, {}, boxes.size(0)};
  const auto [keep, kept] = select<BoxTest>(boxes, iou_threshold, all);
  const Tensor given = wide(boxes);
  const int64_t *places = elements(keep), *number = elements(kept);
  int64_t* to = elements(match);
  DETOPS_WIDE_SWITCH(given.scalar_type(), [&] {
    const math::Box<scalar_t>* box = elements(given);
    // Matches a box to the first kept box, in selection order, that suppresses it, or to itself.
    for_each(match.numel(), [=] __device__(int64_t i) {
      const math::Box<scalar_t> own = box[i];
      const scalar_t area = math::area(own);
      int64_t k = 0;
      for (; k < *number && places[k] != i; ++k) {
        if (math::suppresses(box[places[k]], own, area, iou_threshold)) break;
      }
      to[i] = k < *number ? places[k] : i;
    });
  });
}

}  // namespace detops::cuda
