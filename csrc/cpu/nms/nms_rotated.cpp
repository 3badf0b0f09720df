// SPDX-License-Identifier: MIT
#include "../common/host.h"
#include "../common/rotated_boxes.h"
#include "../common/score_order.h"

#define DETOPS_KERNELS "../nms/nms_rotated.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// Sets keep[i] for the i-th box in the order of selection.
template <typename T>
void suppress(const T* boxes, const Selection& selection, double threshold, int64_t limit,
              uint8_t* keep) {
  const uint32_t* order = selection.order();
  const int64_t n = selection.ends().back();
  Buffer<RotatedBox> prepared(n);
  constexpr int64_t kPreparedPerThread = 4096, kBoxesPerThread = 512;
  parallel_each(n, kPreparedPerThread,
                [&](int64_t i) { prepared[i] = math::rotated_box(boxes + 5 * int64_t(order[i])); });
  const auto segments = static_cast<int64_t>(selection.ends().size());
  const auto nms = DETOPS_IN_USE(rotated_nms<T>);
  parallel_for(segments, grain_for(segments * kBoxesPerThread, n), [&](int64_t k, int64_t last) {
    BoundsList kept;
    Buffer<uint32_t> index;
    for (; k < last; ++k) {
      const int64_t begin = selection.begin(k), count = selection.count(k);
      nms(prepared.data() + begin, count, threshold, limit, kept.reserve(count),
          index.reserve(count), keep + begin);
    }
  });
}

Tensor select(const Tensor& boxes, const Tensor& scores, const Tensor* idxs, double iou_threshold,
              std::optional<double> score_threshold, std::optional<int64_t> max_output) {
  const Candidates candidates(boxes, scores, idxs, score_threshold);
  const int64_t limit = max_output.value_or(candidates.count());
  if (candidates.count() == 0) return empty({0}, candidates.indices);
  const Selection selection(candidates.scores, &candidates.labels);
  Buffer<uint8_t> keep(candidates.count());
  DETOPS_WIDE_SWITCH(candidates.boxes.scalar_type(), [&] {
    const scalar_t* box = candidates.boxes.const_data_ptr<scalar_t>();
    suppress(box, selection, iou_threshold, limit, keep.data());
  });
  return candidates.in_call(selection.selected(keep.data(), candidates.indices, limit));
}

}  // namespace

Tensor nms_rotated(const Tensor& boxes, const Tensor& scores, double iou_threshold,
                   std::optional<double> score_threshold, std::optional<int64_t> max_output) {
  return select(boxes, scores, nullptr, iou_threshold, score_threshold, max_output);
}

Tensor batched_nms_rotated(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                           double iou_threshold, std::optional<double> score_threshold,
                           std::optional<int64_t> max_output) {
  return select(boxes, scores, &idxs, iou_threshold, score_threshold, max_output);
}

}  // namespace detops::cpu
