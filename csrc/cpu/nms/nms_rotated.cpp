// SPDX-License-Identifier: MIT
#include "../boxes/rotated_boxes.h"
#include "../common/host.h"
#include "score_order.h"

#define DETOPS_KERNELS "../nms/nms_rotated.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// Like OverlapRule in nms.cpp.
struct RotatedOverlapRule {
  static Tensor select_single_class(const Tensor&, const Tensor&, double, int64_t, const Options&) {
    return {};
  }

  template <typename T>
  static void suppress(const T* boxes, const Selection& selection, double threshold, int64_t limit,
                       uint8_t* keep) {
    const uint32_t* order = selection.order();
    const int64_t n = selection.ends().back();
    Buffer<RotatedBox> prepared(n);
    constexpr int64_t kPreparedPerThread = 4096, kBoxesPerThread = 512;
    parallel_each(n, kPreparedPerThread, [&](int64_t i) {
      prepared[i] = math::rotated_box(boxes + 5 * int64_t(order[i]));
    });
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
};

constexpr auto select = select_boxes<RotatedOverlapRule>;

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
