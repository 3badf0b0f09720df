// SPDX-License-Identifier: MIT
#include "../../math/decay.h"
#include "../common/box_columns.h"
#include "../common/host.h"
#include "../common/score_order.h"

#define DETOPS_KERNELS "../nms/decay_nms.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// The remaining boxes in input order, with their scores (`list.extra`) and input indices. A NaN
// score marks a box that was selected or dropped. kColumnPadding NaN scores follow the last box.
template <typename T>
struct SoftNmsBoxes {
  static constexpr T kNone = std::numeric_limits<T>::quiet_NaN();
  const BoxColumns<T> list;
  Buffer<uint32_t> index;
  int64_t count = 0;

  SoftNmsBoxes(const math::Box<T>* boxes, const T* scores, int64_t n, T min_score)
      : list(n), index(n) {
    for (int64_t i = 0; i < n; ++i) {
      if (!(scores[i] >= min_score)) continue;
      list.set(count, boxes[i]);
      list.extra[count] = scores[i];
      index[count++] = static_cast<uint32_t>(i);
    }
    pad();
  }

  // Removes and returns box k.
  math::OverlapBox<T> remove(int64_t k) {
    list.extra[k] = kNone;
    return {box_at(list, k), list.area[k], 0};
  }

  // Closes the gaps. Returns the new position of box k.
  int64_t compact(int64_t k) {
    int64_t to = 0, moved = k;
    for (int64_t i = 0; i < count; ++i) {
      if (i == k) moved = to;
      for (T* column : {list.x1, list.y1, list.x2, list.y2, list.area, list.extra}) {
        column[to] = column[i];
      }
      index[to] = index[i];
      to += list.extra[i] == list.extra[i];
    }
    count = to;
    pad();
    return moved;
  }

  void pad() { std::fill_n(list.extra + count, kColumnPadding, kNone); }
};

// Computes the factors for the scores of one label: boxes [first, last) of the list, where
// `list.extra` holds math::decay::matrix_term. For each block, all threads compare its boxes with
// the boxes before the block, whose terms are final. One thread then settles the block in order.
template <math::Decay kind, typename T>
void compute_factors(const BoxColumns<T>& list, int64_t first, int64_t last, T sigma, T* factors) {
  constexpr int64_t kBlock = 256, kPairsPerThread = 1 << 15;
  const auto compare = DETOPS_IN_USE(matrix_nms_compare<kind, T>);
  T max_iou[kBlock], weight[kBlock];
  for (int64_t begin = first; begin < last; begin += kBlock) {
    const int64_t count = std::min(kBlock, last - begin);
    parallel_each(count, grain_for(kPairsPerThread, begin - first + 1), [&](int64_t j) {
      max_iou[j] = 0;
      weight[j] = math::decay::matrix_least_weight<kind, T>();
      compare(list, first, begin, begin + j, max_iou[j], weight[j]);
    });
    for (int64_t j = 0; j < count; ++j) {
      compare(list, begin, begin + j, begin + j, max_iou[j], weight[j]);
      list.extra[begin + j] = math::decay::matrix_term<kind>(max_iou[j]);
      factors[begin + j] = math::decay::matrix_factor<kind>(weight[j], sigma);
    }
  }
}

// Returns the decayed scores of matrix NMS in input order.
template <math::Decay kind, typename T>
Buffer<T> matrix_nms_scores(const math::Box<T>* boxes, const T* scores, const Selection& selection,
                            T sigma, T min_score) {
  const uint32_t* order = selection.order();
  const int64_t n = selection.ends().back();
  Buffer<T> factors(n), result(n);
  const BoxColumns<T> list(n);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t from = order[i];
    // A box with a NaN score decays no other box and is dropped.
    if (scores[from] == scores[from]) list.set(i, boxes[from]);
  }
  const auto decay_segment = [&](int64_t k) {
    const int64_t begin = selection.begin(k);
    int64_t end = selection.ends()[k];
    // Scores only fall: boxes below the limit now will be dropped, and can only decay boxes that
    // are dropped too.
    while (min_score > 0 && end > begin && scores[order[end - 1]] < min_score) {
      factors[--end] = T(1);
    }
    compute_factors<kind>(list, begin, end, sigma, factors.data());
  };
  // Long labels run one at a time, each on all threads. The others then run in parallel.
  constexpr int64_t kMinParallelBoxes = 4096, kBoxesPerThread = 1024;
  const auto segments = static_cast<int64_t>(selection.ends().size());
  const auto is_long = [&](int64_t k) {
    return segments == 1 || selection.count(k) >= kMinParallelBoxes;
  };
  for (int64_t k = 0; k < segments; ++k) {
    if (is_long(k)) decay_segment(k);
  }
  parallel_each(segments, grain_for(segments * kBoxesPerThread, n), [&](int64_t k) {
    if (!is_long(k)) decay_segment(k);
  });
  for (int64_t i = 0; i < n; ++i) result[order[i]] = scores[order[i]] * factors[i];
  return result;
}

}  // namespace

std::tuple<Tensor, Tensor> soft_nms(const Tensor& boxes, const Tensor& scores, double iou_threshold,
                                    double sigma, double min_score, std::string_view method,
                                    std::optional<int64_t> max_output) {
  const int64_t n = boxes.size(0), limit = max_output.value_or(n);
  const auto type = compute_type(boxes, scores);
  const Tensor wide_boxes = boxes.to(type).contiguous();
  const Tensor wide_scores = scores.to(type).contiguous();
  Tensor keep, kept_scores;
  DETOPS_WIDE_SWITCH(type, [&] {
    const auto rule = math::soft_nms_rule<scalar_t>(iou_threshold, sigma, min_score);
    SoftNmsBoxes<scalar_t> active(rows<math::Box, scalar_t>(wide_boxes),
                                  wide_scores.const_data_ptr<scalar_t>(), n, rule.min_score);
    Buffer<int64_t> index(n);
    Buffer<scalar_t> score(n);
    int64_t count = 0;
    // The empty box meets no other, so under the linear rule this pass only finds the best score.
    int64_t remaining = 0;
    int64_t best = DETOPS_IN_USE(soft_nms_rescale<math::Decay::kLinear, scalar_t>)(
        active.list, active.count, {{0, 0, 0, 0}, 0, 0}, rule, remaining);
    math::with_decay(decay_method(method), [&](auto decay) {
      const auto rescale = DETOPS_IN_USE(soft_nms_rescale<decltype(decay)::value, scalar_t>);
      while (best >= 0 && count < limit) {
        // Closing gaps costs as much as a few passes.
        if (remaining < active.count / 4 * 3) best = active.compact(best);
        index[count] = active.index[best];
        score[count++] = active.list.extra[best];
        if (count < limit) {
          best = rescale(active.list, active.count, active.remove(best), rule, remaining);
        }
      }
    });
    keep = empty({count}, boxes.options().dtype(kLong));
    kept_scores = empty({count}, wide_scores.options());
    std::copy_n(index.data(), count, keep.mutable_data_ptr<int64_t>());
    std::copy_n(score.data(), count, kept_scores.mutable_data_ptr<scalar_t>());
  });
  return {keep, kept_scores.to(scores.scalar_type())};
}

std::tuple<Tensor, Tensor> matrix_nms(const Tensor& boxes, const Tensor& scores,
                                      const std::optional<Tensor>& idxs, double sigma,
                                      double min_score, std::string_view method) {
  const int64_t n = boxes.size(0);
  const auto indices = boxes.options().dtype(kLong);
  if (n == 0) return {empty({0}, indices), empty({0}, scores.options())};
  const auto type = compute_type(boxes, scores);
  const Tensor wide_boxes = boxes.to(type).contiguous();
  const Tensor wide_scores = scores.to(type).contiguous();
  const Tensor labels = normalize_labels(idxs ? &*idxs : nullptr);
  const Selection selection(wide_scores, &labels);
  const bool linear = decay_method(method) == math::Decay::kLinear;
  Tensor keep, kept_scores;
  DETOPS_WIDE_SWITCH(type, [&] {
    const auto lowest = math::nearest_finite<scalar_t>(min_score);
    auto* const run = linear ? matrix_nms_scores<math::Decay::kLinear, scalar_t>
                             : matrix_nms_scores<math::Decay::kGaussian, scalar_t>;
    const auto result =
        run(rows<math::Box, scalar_t>(wide_boxes), wide_scores.const_data_ptr<scalar_t>(),
            selection, math::nearest_finite<scalar_t>(sigma), lowest);
    Buffer<uint32_t> kept(n), order(n);
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (result[i] >= lowest) kept[count++] = static_cast<uint32_t>(i);
    }
    ArgSort<decltype(descending_key(scalar_t()))>()(
        count, [&](int64_t i) { return descending_key(result[kept[i]]); }, order.data());
    keep = empty({count}, indices);
    kept_scores = empty({count}, wide_scores.options());
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t index = kept[order[i]];
      keep.mutable_data_ptr<int64_t>()[i] = index;
      kept_scores.mutable_data_ptr<scalar_t>()[i] = result[index];
    }
  });
  return {keep, kept_scores.to(scores.scalar_type())};
}

}  // namespace detops::cpu
