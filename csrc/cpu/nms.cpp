// SPDX-License-Identifier: MIT
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "../ops.h"
#include "kernels.h"
#include "sort.h"

namespace detops::cpu {
namespace {

std::vector<int64_t> descending_order(const Tensor& scores) {
  std::vector<int64_t> order = iota(scores.numel());
  AT_DISPATCH_FLOATING_TYPES(scores.scalar_type(), "detops.nms", [&] {
    const scalar_t* score = scores.const_data_ptr<scalar_t>();
    std::vector<decltype(descending_key(*score))> keys(order.size());
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = descending_key(score[i]);
    argsort(keys, order);
  });
  return order;
}

// Groups the score order by label, stably, and returns where each group ends. Labels are compared
// as they are; no box is moved.
std::vector<int64_t> group_by_label(const int64_t* labels, std::vector<int64_t>& order) {
  std::vector<uint64_t> keys(order.size());
  // Flipping the sign bit makes unsigned order the signed one.
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = uint64_t(labels[i]) ^ (uint64_t(1) << 63);
  argsort(keys, order);
  std::vector<int64_t> ends;
  for (size_t i = 1; i < order.size(); ++i) {
    if (labels[order[i]] != labels[order[i - 1]]) ends.push_back(int64_t(i));
  }
  ends.push_back(int64_t(order.size()));
  return ends;
}

// keep[i] for box i. `order` is the order of selection, group by group.
template <typename T>
std::vector<uint8_t> suppress(const T* boxes, const std::vector<int64_t>& order,
                              const std::vector<int64_t>& ends, double threshold) {
  const int64_t n = static_cast<int64_t>(order.size());
  std::vector<T> coordinates(4 * n);
  T* x1 = coordinates.data();
  T *y1 = x1 + n, *x2 = y1 + n, *y2 = x2 + n;
  for (int64_t i = 0; i < n; ++i) {
    const T* box = boxes + 4 * order[i];
    x1[i] = box[0], y1[i] = box[1], x2[i] = box[2], y2[i] = box[3];
  }
  std::vector<uint8_t> sorted_keep(n), keep(n);
  const int64_t groups = static_cast<int64_t>(ends.size());
  // A thread is worth its start from a few thousand boxes on.
  const int64_t grain = std::max<int64_t>(1, groups * 4096 / n);
  at::parallel_for(0, groups, grain, [&](int64_t group, int64_t last) {
    std::vector<T> scratch;
    for (; group < last; ++group) {
      const int64_t begin = group == 0 ? 0 : ends[group - 1], count = ends[group] - begin;
      scratch.resize(std::max<size_t>(scratch.size(), nms_scratch(count)));
      kernels().nms(NmsSegment<T>{x1 + begin, y1 + begin, x2 + begin, y2 + begin, count, threshold,
                                  sorted_keep.data() + begin, scratch.data()});
    }
  });
  for (int64_t i = 0; i < n; ++i) keep[order[i]] = sorted_keep[i];
  return keep;
}

Tensor select(const Tensor& boxes, const Tensor& scores, const Tensor* idxs, double threshold) {
  const auto indices = boxes.options().dtype(at::kLong);
  if (boxes.size(0) == 0) return at::empty({0}, indices);

  const Tensor wide_boxes = boxes.to(compute_type(boxes.scalar_type())).contiguous();
  const Tensor wide_scores = scores.to(compute_type(scores.scalar_type())).contiguous();
  const std::vector<int64_t> by_score = descending_order(wide_scores);
  std::vector<int64_t> order = by_score;
  std::vector<int64_t> ends{boxes.size(0)};
  if (idxs != nullptr) {
    const Tensor labels = idxs->to(at::kLong).contiguous();
    ends = group_by_label(labels.const_data_ptr<int64_t>(), order);
  }
  std::vector<uint8_t> keep;
  AT_DISPATCH_FLOATING_TYPES(wide_boxes.scalar_type(), "detops.nms", [&] {
    keep = suppress(wide_boxes.const_data_ptr<scalar_t>(), order, ends, threshold);
  });

  Tensor kept = at::empty({std::count(keep.begin(), keep.end(), 1)}, indices);
  int64_t* out = kept.mutable_data_ptr<int64_t>();
  for (const int64_t i : by_score) {
    if (keep[i]) *out++ = i;
  }
  return kept;
}

}  // namespace

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  meta::check_nms(boxes, scores, std::nullopt, iou_threshold);
  return select(boxes, scores, nullptr, iou_threshold);
}

Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold) {
  meta::check_nms(boxes, scores, idxs, iou_threshold);
  return select(boxes, scores, &idxs, iou_threshold);
}

}  // namespace detops::cpu
