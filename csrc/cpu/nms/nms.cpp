// SPDX-License-Identifier: MIT
#include "../common/host.h"
#include "../common/score_order.h"
#include "nms_strips.h"

#define DETOPS_KERNELS "../nms/nms.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// Minimum number of boxes to run one class on several threads. They settle every box of the class,
// while one thread stops at the last box that is to be kept.
constexpr int64_t kMinParallelBoxes = 32768;
bool should_parallelize(int64_t n, int64_t limit) {
  return n >= effective_grain(kMinParallelBoxes) && limit > n / 16 && get_num_threads() > 1 &&
         !in_parallel_region();
}

// Returns the first n boxes of an order as columns of coordinates.
template <typename T>
NmsSegment<T> gather_boxes(const T* boxes, const uint32_t* order, int64_t n, double threshold,
                           Buffer<T>& memory) {
  T* x1 = memory.reserve(4 * n);
  T *y1 = x1 + n, *x2 = y1 + n, *y2 = x2 + n;
  parallel_each(n, kMinParallelBoxes, [=](int64_t i) {
    const T* box = boxes + 4 * int64_t(order[i]);
    x1[i] = box[0], y1[i] = box[1], x2[i] = box[2], y2[i] = box[3];
  });
  return {x1, y1, x2, y2, n, threshold, n, nullptr};
}

template <typename T>
StripKernels<T> strip_kernels() {
  return {DETOPS_IN_USE(nms_strip<T>), DETOPS_IN_USE(nms_suppressed<T>)};
}

// Runs NMS of one class on several threads. Returns an undefined tensor if one thread is better.
Tensor select_in_strips(const Candidates& candidates, double threshold, int64_t limit) {
  if (!should_parallelize(candidates.count(), limit)) return {};
  return DETOPS_WIDE_SWITCH(candidates.boxes.scalar_type(), [&]() -> Tensor {
    const scalar_t* box = candidates.boxes.const_data_ptr<scalar_t>();
    const auto box_of = [=](int64_t i) { return box + 4 * i; };
    const auto kernels = strip_kernels<scalar_t>();
    return DETOPS_WIDE_SWITCH(candidates.scores.scalar_type(), [&]() -> Tensor {
      const scalar_t* score = candidates.scores.const_data_ptr<scalar_t>();
      const auto key_of = [=](int64_t i) { return descending_key(score[i]); };
      NmsStrips<std::decay_t<decltype(*box)>, decltype(key_of(0))> strips(kernels);
      if (!strips.settle(candidates.count(), threshold, box_of, key_of)) return Tensor();
      return strips.selected(candidates.indices, limit);
    });
  });
}

// Sets keep[i] for the i-th box in the order of selection.
template <typename T>
void suppress(const T* boxes, const Selection& selection, double threshold, int64_t limit,
              uint8_t* keep) {
  const uint32_t* order = selection.order();
  const int64_t n = selection.ends().back();
  Buffer<T> memory;
  const NmsSegment<T> all = gather_boxes(boxes, order, n, threshold, memory);
  // Long segments run one at a time, each on all threads. The others then run in parallel.
  std::vector<size_t> rest;
  rest.reserve(selection.ends().size());
  for (size_t k = 0; k < selection.ends().size(); ++k) {
    const int64_t begin = selection.begin(k), count = selection.count(k);
    NmsStrips<T, uint32_t> strips(strip_kernels<T>());
    if (count < n && should_parallelize(count, limit) &&
        strips.settle(
            count, threshold, [&](int64_t i) { return boxes + 4 * int64_t(order[begin + i]); },
            [](int64_t i) { return static_cast<uint32_t>(i); })) {
      strips.write_keep(keep + begin);
    } else {
      rest.push_back(k);
    }
  }
  // Starting a thread pays off from a few thousand boxes.
  const auto segments = static_cast<int64_t>(rest.size());
  parallel_for(segments, grain_for(segments * 4096, n), [&](int64_t k, int64_t last) {
    NmsBoxList<T> kept;
    NmsGridStorage<T> grid;
    for (; k < last; ++k) {
      const int64_t begin = selection.begin(rest[k]), count = selection.count(rest[k]);
      const NmsSegment<T> s{all.x1 + begin, all.y1 + begin, all.x2 + begin, all.y2 + begin,
                            count,          threshold,      limit,          keep + begin};
      const int64_t settled = DETOPS_IN_USE(nms_flat<T>)(s, kept.reserve(count));
      if (settled < count) DETOPS_IN_USE(nms_grid<T>)(s, grid.build(s, settled), settled);
    }
  });
}

Tensor select(const Tensor& boxes, const Tensor& scores, const Tensor* idxs, double iou_threshold,
              std::optional<double> score_threshold, std::optional<int64_t> max_output) {
  const Candidates candidates(boxes, scores, idxs, score_threshold);
  const int64_t n = candidates.count(), limit = max_output.value_or(n);
  if (n == 0) return empty({0}, candidates.indices);
  if (!candidates.labels.defined()) {
    const Tensor kept = select_in_strips(candidates, iou_threshold, limit);
    if (kept.defined()) return candidates.in_call(kept);
  }
  const Selection selection(candidates.scores, &candidates.labels);
  Buffer<uint8_t> keep(n);
  DETOPS_WIDE_SWITCH(candidates.boxes.scalar_type(), [&] {
    const scalar_t* box = candidates.boxes.const_data_ptr<scalar_t>();
    suppress(box, selection, iou_threshold, limit, keep.data());
  });
  return candidates.in_call(selection.selected(keep.data(), candidates.indices, limit));
}

}  // namespace

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold,
           std::optional<double> score_threshold, std::optional<int64_t> max_output) {
  return select(boxes, scores, nullptr, iou_threshold, score_threshold, max_output);
}

Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold, std::optional<double> score_threshold,
                   std::optional<int64_t> max_output) {
  return select(boxes, scores, &idxs, iou_threshold, score_threshold, max_output);
}

void nms_match(const Tensor& boxes, const Tensor& scores, double iou_threshold, Tensor& match) {
  const int64_t n = boxes.size(0);
  const Tensor wide_boxes = wide(boxes);
  const Selection selection(wide(scores), nullptr);
  const uint32_t* order = selection.order();
  int64_t* out = match.mutable_data_ptr<int64_t>();
  Buffer<uint32_t> kept_index(n), matched(n);
  DETOPS_WIDE_SWITCH(wide_boxes.scalar_type(), [&] {
    Buffer<scalar_t> memory;
    NmsBoxList<scalar_t> kept;
    const auto* box = wide_boxes.const_data_ptr<scalar_t>();
    DETOPS_IN_USE(nms_match<scalar_t>)
    (gather_boxes(box, order, n, iou_threshold, memory), kept.reserve(n), kept_index.data(),
     matched.data());
  });
  for (int64_t i = 0; i < n; ++i) out[order[i]] = order[matched[i]];
}

void nms_padded(const Tensor& boxes, const Tensor& scores, const std::optional<Tensor>& idxs,
                double iou_threshold, int64_t max_output, Tensor& keep, Tensor& count) {
  const Tensor kept = select(boxes, scores, idxs ? &*idxs : nullptr, iou_threshold, {}, max_output);
  const int64_t n = kept.size(0);
  keep.narrow(0, 0, n).copy_(kept);
  keep.narrow(0, n, max_output - n).fill_(-1);
  count.fill_(n);
}

}  // namespace detops::cpu
