// SPDX-License-Identifier: MIT
#include "../../ops.h"
#include "nms_tree.h"
#include "score_order.h"

#define DETOPS_KERNELS "../nms/nms.inl"
#include "../simd/variants.h"
//
#include "nms_strips.h"

namespace detops::cpu {
namespace {

// What one thread needs; memory is kept from one segment to the next.
template <typename T>
class Nms {
 public:
  void operator()(const NmsSegment<T>& s) {
    const int64_t stride = (s.count + 2 * kNmsPadding - 1) / kNmsPadding * kNmsPadding;
    T* x1 = kept_.reserve(5 * stride);
    const NmsBoxes<T> kept{x1, x1 + stride, x1 + 2 * stride, x1 + 3 * stride, x1 + 4 * stride};
    const int64_t settled = DETOPS_IN_USE(nms_flat<T>)(s, kept);
    if (settled == s.count) return;
    if (s.threshold < kNmsGridThreshold) {
      DETOPS_IN_USE(nms_tree<T>)(s, tree_.build(s, settled), settled);
    } else {
      DETOPS_IN_USE(nms_grid<T>)(s, grid_.build(s, settled), settled);
    }
  }

 private:
  Buffer<T> kept_;
  NmsGridStorage<T> grid_;
  NmsTreeStorage<T> tree_;
};

// From how many boxes on one class is worth several threads.
constexpr int64_t kShared = 32768;
bool worth_threads(int64_t n) {
  return n >= kShared && get_num_threads() > 1 && !in_parallel_region();
}

// One class by several threads; undefined where one is better.
Tensor select_in_strips(const Tensor& boxes, const Tensor& scores, double threshold,
                        const Options& indices) {
  const int64_t n = boxes.size(0);
  if (!worth_threads(n)) return {};
  return DETOPS_WIDE_SWITCH(boxes.scalar_type(), [&]() -> Tensor {
    const scalar_t* box = boxes.const_data_ptr<scalar_t>();
    const auto box_of = [=](int64_t i) { return box + 4 * i; };
    return DETOPS_WIDE_SWITCH(scores.scalar_type(), [&]() -> Tensor {
      const scalar_t* score = scores.const_data_ptr<scalar_t>();
      const auto key_of = [=](int64_t i) { return descending_key(score[i]); };
      NmsStrips<std::decay_t<decltype(*box)>, decltype(key_of(0))> strips;
      return strips.settle(n, threshold, box_of, key_of) ? strips.selected(indices) : Tensor();
    });
  });
}

// keep[i] for the i-th box in the order of selection.
template <typename T>
void suppress(const T* boxes, const Selection& selection, double threshold, uint8_t* keep) {
  const uint32_t* order = selection.order();
  const int64_t n = selection.ends().back();
  Buffer<T> coordinates(4 * n);
  T* x1 = coordinates.data();
  T *y1 = x1 + n, *x2 = y1 + n, *y2 = x2 + n;
  parallel_for(0, n, kShared, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* box = boxes + 4 * int64_t(order[i]);
      x1[i] = box[0], y1[i] = box[1], x2[i] = box[2], y2[i] = box[3];
    }
  });
  // Long segments one after another, each by all threads; then the others side by side.
  std::vector<int64_t> rest;
  for (size_t k = 0; k < selection.ends().size(); ++k) {
    const int64_t begin = selection.begin(k), count = selection.count(k);
    NmsStrips<T, uint32_t> strips;
    if (count < n && worth_threads(count) &&
        strips.settle(
            count, threshold, [&](int64_t i) { return boxes + 4 * int64_t(order[begin + i]); },
            [](int64_t i) { return static_cast<uint32_t>(i); })) {
      strips.mark(keep + begin);
    } else {
      rest.push_back(begin);
      rest.push_back(count);
    }
  }
  // A thread is worth its start from a few thousand boxes on.
  const int64_t segments = static_cast<int64_t>(rest.size()) / 2;
  const int64_t grain = std::max<int64_t>(1, segments * 4096 / n);
  parallel_for(0, segments, grain, [&](int64_t k, int64_t last) {
    Nms<T> nms;
    for (; k < last; ++k) {
      const int64_t begin = rest[2 * k];
      nms({x1 + begin, y1 + begin, x2 + begin, y2 + begin, rest[2 * k + 1], threshold,
           keep + begin});
    }
  });
}

Tensor select(const char* op, const Tensor& boxes, const Tensor& scores, const Tensor* idxs,
              double threshold) {
  const int64_t n = boxes.size(0);
  const auto indices = boxes.options().dtype(kLong);
  if (n == 0) return empty({0}, indices);
  check_count(op, n);

  const Tensor wide_boxes = wide(boxes), wide_scores = wide(scores);
  const Labels labels(idxs);
  if (labels.data() == nullptr) {
    Tensor output = select_in_strips(wide_boxes, wide_scores, threshold, indices);
    if (output.defined()) return output;
  }
  const Selection selection(wide_scores, labels.data());
  Buffer<uint8_t> keep(n);
  DETOPS_WIDE_SWITCH(wide_boxes.scalar_type(), [&] {
    suppress(wide_boxes.const_data_ptr<scalar_t>(), selection, threshold, keep.data());
  });
  return selection.selected(keep.data(), indices);
}

}  // namespace

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  return select("nms", boxes, scores, nullptr, iou_threshold);
}

Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold) {
  return select("batched_nms", boxes, scores, &idxs, iou_threshold);
}

void nms_padded(const Tensor& boxes, const Tensor& scores, const std::optional<Tensor>& idxs,
                double iou_threshold, int64_t max_output, Tensor& keep, Tensor& count) {
  const Tensor kept = select("nms_padded", boxes, scores, idxs ? &*idxs : nullptr, iou_threshold);
  const int64_t n = std::min(kept.size(0), max_output);
  keep.narrow(0, 0, n).copy_(kept.narrow(0, 0, n));
  keep.narrow(0, n, max_output - n).fill_(-1);
  count.fill_(n);
}

}  // namespace detops::cpu
