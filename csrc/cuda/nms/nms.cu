// SPDX-License-Identifier: MIT
#include "../common/nms.cuh"

#include "../../math/polygon.h"
#include "../../math/rotated_box.h"

namespace detops::cuda {
namespace {

// Suppression tests, see nms.cuh. The IoU is rounded to T. A box has kElements elements.
template <typename T>
struct BoxTest {
  static constexpr int kElements = 4;
  struct alignas(4 * sizeof(T)) Item : math::Box<T> {};
  double threshold;

  static __device__ Item item(const T* b) { return {{b[0], b[1], b[2], b[3]}}; }
  __device__ bool operator()(const Item& suppressor, const Item& box) const {
    return math::suppresses(suppressor, box, math::area(box), threshold);
  }
};

template <typename T>
struct RotatedTest {
  static constexpr int kElements = 5;
  using Item = math::RotatedBox<double>;
  double threshold;

  static __device__ Item item(const T* box) { return math::rotated_box(box); }
  __device__ bool operator()(const Item& suppressor, const Item& box) const {
    return math::suppresses<T>(suppressor, box, threshold);
  }
};

template <typename T>
struct QuadTest {
  static constexpr int kElements = 8;
  using Item = math::Quad;
  double threshold;

  static __device__ Item item(const T* corners) { return math::quad(corners); }
  __device__ bool operator()(const Item& suppressor, const Item& box) const {
    return math::suppresses<T>(suppressor, box, threshold);
  }
};

template <template <typename> class TestOf>
Selected select(const Tensor& boxes, double threshold, const NmsOptions& options) {
  const Tensor rows = boxes.contiguous();
  return DETOPS_FLOAT_SWITCH(rows.scalar_type(), [&] {
    using Test = TestOf<accumulate_t<scalar_t>>;
    const scalar_t* row = elements(rows);
    const auto make_item = [=] __device__(int64_t box) {
      accumulate_t<scalar_t> values[Test::kElements];
      for (int k = 0; k < Test::kElements; ++k) values[k] = row[box * Test::kElements + k];
      return Test::item(values);
    };
    return select_boxes(Test{threshold}, make_item, options);
  });
}

}  // namespace

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold,
           std::optional<double> score_threshold, std::optional<int64_t> max_output) {
  const NmsOptions options{scores, nullptr, score_threshold, output_limit(boxes, max_output)};
  return without_padding(select<BoxTest>(boxes, iou_threshold, options));
}

Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold, std::optional<double> score_threshold,
                   std::optional<int64_t> max_output) {
  const NmsOptions options{scores, &idxs, score_threshold, output_limit(boxes, max_output)};
  return without_padding(select<BoxTest>(boxes, iou_threshold, options));
}

Tensor nms_rotated(const Tensor& boxes, const Tensor& scores, double iou_threshold,
                   std::optional<double> score_threshold, std::optional<int64_t> max_output) {
  const NmsOptions options{scores, nullptr, score_threshold, output_limit(boxes, max_output)};
  return without_padding(select<RotatedTest>(boxes, iou_threshold, options));
}

Tensor batched_nms_rotated(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                           double iou_threshold, std::optional<double> score_threshold,
                           std::optional<int64_t> max_output) {
  const NmsOptions options{scores, &idxs, score_threshold, output_limit(boxes, max_output)};
  return without_padding(select<RotatedTest>(boxes, iou_threshold, options));
}

Tensor nms_quadri(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  const NmsOptions options{scores, nullptr, {}, boxes.size(0)};
  return without_padding(select<QuadTest>(boxes, iou_threshold, options));
}

void nms_padded(const Tensor& boxes, const Tensor& scores, const std::optional<Tensor>& idxs,
                double iou_threshold, int64_t max_output, Tensor& keep, Tensor& count) {
  const NmsOptions options{scores, idxs ? &*idxs : nullptr, {}, max_output};
  const Selected selected = select<BoxTest>(boxes, iou_threshold, options);
  keep = selected.keep;
  count = selected.count;
}

void nms_match(const Tensor& boxes, const Tensor& scores, double iou_threshold, Tensor& match) {
  const NmsOptions options{scores, nullptr, {}, boxes.size(0)};
  const auto [keep, count] = select<BoxTest>(boxes, iou_threshold, options);
  const Tensor wide_boxes = wide(boxes);
  const int64_t *kept_indices = elements(keep), *n_kept = elements(count);
  int64_t* to = elements(match);
  DETOPS_WIDE_SWITCH(wide_boxes.scalar_type(), [&] {
    const math::Box<scalar_t>* box = elements(wide_boxes);
    // Matches a box to the first kept box, in selection order, that suppresses it, or to itself.
    for_each(match.numel(), [=] __device__(int64_t i) {
      const math::Box<scalar_t> candidate = box[i];
      const scalar_t area = math::area(candidate);
      int64_t k = 0;
      for (; k < *n_kept && kept_indices[k] != i; ++k) {
        if (math::suppresses(box[kept_indices[k]], candidate, area, iou_threshold)) break;
      }
      to[i] = k < *n_kept ? kept_indices[k] : i;
    });
  });
}

}  // namespace detops::cuda
