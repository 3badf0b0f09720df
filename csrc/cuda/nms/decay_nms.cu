// SPDX-License-Identifier: MIT
#include "../../math/decay.h"
#include "../common/nms.cuh"

namespace detops::cuda {
namespace {

constexpr int kSoftNmsThreads = 1024;

// Each selection is one pass over the boxes and depends on the previous one, so there is a single
// block. Each thread owns every 1024th box. Selected and dropped boxes have a NaN score.
template <math::Decay kind, typename T>
__global__ void __launch_bounds__(kSoftNmsThreads)
    soft_nms_kernel(const math::Box<T>* boxes, T* scores, int64_t count, math::SoftNmsRule<T> rule,
                    int64_t limit, int64_t* keep, T* kept_scores, int64_t* n_kept) {
  __shared__ ArgMax<T> warp_best[kSoftNmsThreads / kWarp];
  const int self = static_cast<int>(threadIdx.x);
  math::Box<T> selected{};
  int64_t last = -1, n = 0;
  while (n < limit) {
    const T area = math::area(selected);
    ArgMax<T> best{0, -1};
    for (int64_t i = self; i < count; i += kSoftNmsThreads) {
      T score = scores[i];
      if (score != score) continue;
      if (last >= 0) {
        const math::Box<T> box = boxes[i];
        const T intersection = math::intersection(selected, box);
        const T iou = math::pairwise::iou(intersection, area + math::area(box) - intersection);
        score = math::decay::decayed<kind, T>(score, iou, rule);
      }
      if (i == last || !(score >= rule.min_score)) {
        scores[i] = static_cast<T>(NAN);
        continue;
      }
      scores[i] = score;
      best.add({score, i});
    }
    best = reduce_block(best, warp_best);
    last = best.index;
    if (last < 0) break;
    if (self == 0) {
      keep[n] = last;
      kept_scores[n] = best.value;
    }
    ++n;
    selected = boxes[last];
    // All threads must have read warp_best before it is written again.
    __syncthreads();
  }
  if (self == 0) *n_kept = n;
}

// Calls meet(i, iou) in score order for the boxes i < j of the same label that overlap box j. Boxes
// with a NaN score are skipped. `labels` may be null.
template <typename T, typename Visit>
__device__ void for_each_overlapping(const math::Box<T>* boxes, const T* scores,
                                     const int64_t* labels, int64_t j, const Visit& visit) {
  const math::Box<T> box = boxes[j];
  const T area = math::area(box);
  for (int64_t i = 0; i < j; ++i) {
    if (labels != nullptr && labels[i] != labels[j]) continue;
    if (scores[i] != scores[i]) continue;
    const math::Box<T> other = boxes[i];
    const T intersection = math::intersection(other, box);
    const T iou = math::pairwise::iou(intersection, math::area(other) + area - intersection);
    if (iou > 0) visit(i, iou);
  }
}

// The boxes are in score order. `rescored` is in input order, so that ties keep the input order.
template <math::Decay kind, typename T>
void matrix_scores(const math::Box<T>* boxes, const T* scores, const int64_t* labels, int64_t count,
                   T sigma, T* terms, const int* order, T* rescored) {
  for_each(count, [=] __device__(int64_t j) {
    T max_iou = 0;
    for_each_overlapping(boxes, scores, labels, j,
                         [&](int64_t, T iou) { max_iou = math::max(max_iou, iou); });
    terms[j] = math::decay::matrix_term<kind>(max_iou);
  });
  for_each(count, [=] __device__(int64_t j) {
    T weight = math::decay::matrix_least_weight<kind, T>();
    for_each_overlapping(boxes, scores, labels, j, [&](int64_t i, T iou) {
      weight = math::max(weight, math::decay::matrix_weight<kind, T>(iou, terms[i]));
    });
    rescored[order[j]] = scores[j] * math::decay::matrix_factor<kind>(weight, sigma);
  });
}

}  // namespace

std::tuple<Tensor, Tensor> soft_nms(const Tensor& boxes, const Tensor& scores, double iou_threshold,
                                    double sigma, double min_score, std::string_view method,
                                    std::optional<int64_t> max_output) {
  const int64_t count = boxes.size(0);
  const ScalarType type = compute_type(boxes, scores);
  const Tensor wide_boxes = boxes.to(type).contiguous();
  const Tensor remaining = empty({count}, scores.options().dtype(type)).copy_(scores);
  const Tensor keep = empty({count}, boxes.options().dtype(kLong));
  const Tensor kept_scores = empty({count}, remaining.options());
  if (count == 0) return {keep, kept_scores.to(scores.scalar_type())};
  const Tensor n_kept = empty({1}, keep.options());
  DETOPS_WIDE_SWITCH(type, [&] {
    const auto rule = math::soft_nms_rule<scalar_t>(iou_threshold, sigma, min_score);
    math::with_decay(decay_method(method), [&](auto constant) {
      launch(soft_nms_kernel<constant, scalar_t>, {1, kSoftNmsThreads}, wide_boxes, remaining,
             count, rule, max_output.value_or(count), keep, kept_scores, n_kept);
    });
  });
  const int64_t n = n_kept.item<int64_t>();
  return {keep.narrow(0, 0, n).clone(),
          empty({n}, scores.options()).copy_(kept_scores.narrow(0, 0, n))};
}

std::tuple<Tensor, Tensor> matrix_nms(const Tensor& boxes, const Tensor& scores,
                                      const std::optional<Tensor>& idxs, double sigma,
                                      double min_score, std::string_view method) {
  const int64_t count = boxes.size(0);
  if (count == 0) {
    return {empty({0}, boxes.options().dtype(kLong)), empty({0}, scores.options())};
  }
  const ScalarType type = compute_type(boxes, scores);
  const Tensor order = selection_order(scores);
  const Tensor sorted = index_select(boxes.to(type), order);
  const Tensor sorted_scores = index_select(scores.to(type), order);
  const Tensor labels = idxs ? index_select(idxs->to(kLong), order) : Tensor();
  const Tensor terms = empty_like(sorted_scores), rescored = empty_like(sorted_scores);
  Tensor threshold;
  DETOPS_WIDE_SWITCH(type, [&] {
    math::with_constant<math::Decay::kLinear, math::Decay::kGaussian>(
        decay_method(method), [&](auto kind) {
          matrix_scores<kind, scalar_t>(elements(sorted), elements(sorted_scores), elements(labels),
                                        count, math::nearest_finite<scalar_t>(sigma),
                                        elements(terms), elements(order), elements(rescored));
        });
    threshold = empty({}, rescored.options()).fill_(math::nearest_finite<scalar_t>(min_score));
  });
  const Tensor is_kept = call::op("aten::ge", "Tensor", rescored, threshold);
  const Tensor keep =
      call::op("aten::squeeze", "dim", call::op("aten::nonzero", "", is_kept), int64_t(1));
  const Tensor kept = index_select(rescored, keep), kept_order = selection_order(kept);
  return {index_select(keep, kept_order), index_select(kept, kept_order).to(scores.scalar_type())};
}

}  // namespace detops::cuda
