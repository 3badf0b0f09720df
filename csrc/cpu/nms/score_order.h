// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "../../ops.h"
#include "sort.h"

namespace detops::cpu {

// Returns labels as int64, or an undefined tensor if there are none or all are equal.
inline Tensor normalize_labels(const Tensor* idxs) {
  if (idxs == nullptr) return {};
  const Tensor wide = idxs->to(kLong).contiguous();
  const int64_t* label = wide.const_data_ptr<int64_t>();
  const auto is_first = [=](int64_t l) { return l == label[0]; };
  return std::all_of(label, label + wide.numel(), is_first) ? Tensor() : wide;
}

// Boxes in the order of selection: one label after another, by descending score within each. Labels
// are compared as integers. Coordinates are not offset by label.
class Selection {
 public:
  // `scores` is contiguous float32 or float64. `labels` is null or comes from normalize_labels.
  Selection(const Tensor& scores, const Tensor* labels) : by_score_(scores.size(0)) {
    const int64_t n = scores.size(0);
    DETOPS_WIDE_SWITCH(scores.scalar_type(), [&] {
      const scalar_t* score = scores.const_data_ptr<scalar_t>();
      ArgSort<decltype(descending_key(*score))>()(
          n, [&](int64_t i) { return descending_key(score[i]); }, by_score_.data());
    });
    if (labels != nullptr && labels->defined()) {
      const int64_t* label = labels->const_data_ptr<int64_t>();
      // Flipping the sign bit maps the signed order to the unsigned one.
      const auto key = [&](int64_t i) {
        return uint64_t(label[by_score_[i]]) ^ (uint64_t(1) << 63);
      };
      ArgSort<uint64_t>()(n, key, score_rank_.reserve(n));
      by_label_.reserve(n);
      for (int64_t i = 0; i < n; ++i) by_label_[i] = by_score_[score_rank_[i]];
      for (int64_t i = 1; i < n; ++i) {
        if (label[by_label_[i]] != label[by_label_[i - 1]]) ends_.push_back(i);
      }
    }
    ends_.push_back(n);
  }

  const uint32_t* order() const {
    return by_label_.data() == nullptr ? by_score_.data() : by_label_.data();
  }

  // The end of each label in order().
  const std::vector<int64_t>& ends() const { return ends_; }

  int64_t begin(size_t segment) const { return segment == 0 ? 0 : ends_[segment - 1]; }
  int64_t count(size_t segment) const { return ends_[segment] - begin(segment); }

  // Returns the first `limit` kept indices by descending score. keep[i] belongs to order()[i].
  Tensor selected(const uint8_t* keep, const Options& indices, int64_t limit) const {
    const int64_t n = ends_.back();
    Buffer<uint8_t> keep_by_score;
    if (by_label_.data() != nullptr) {
      keep_by_score.reserve(n);
      for (int64_t i = 0; i < n; ++i) keep_by_score[score_rank_[i]] = keep[i];
      keep = keep_by_score.data();
    }
    // Branchless: branches would be unpredictable.
    Buffer<int64_t> kept(n);
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      kept[count] = by_score_[i];
      count += keep[i];
    }
    count = std::min(count, limit);
    Tensor output = empty({count}, indices);
    std::copy_n(kept.data(), count, output.mutable_data_ptr<int64_t>());
    return output;
  }

 private:
  Buffer<uint32_t> by_score_, by_label_, score_rank_;  // by_label_[i] = by_score_[score_rank_[i]]
  std::vector<int64_t> ends_;
};

// Returns the indices of float32 or float64 scores above a threshold.
inline Tensor indices_above(double threshold, const Tensor& scores) {
  const Tensor index = empty({scores.size(0)}, scores.options().dtype(kLong));
  int64_t* out = index.mutable_data_ptr<int64_t>();
  int64_t count = 0;
  DETOPS_WIDE_SWITCH(scores.scalar_type(), [&] {
    const scalar_t* score = scores.const_data_ptr<scalar_t>();
    for (int64_t i = 0; i < scores.size(0); ++i) {
      out[count] = i;
      count += static_cast<double>(score[i]) > threshold;
    }
  });
  return index.narrow(0, 0, count);
}

// Returns the indices of the kept boxes by descending score. `Rule` defines suppression:
//   Rule::suppress(boxes, selection, threshold, limit, keep) sets keep[i] for the i-th box in the
//     order of selection; `limit` kept boxes per class are enough;
//   Rule::select_single_class may return the result for boxes of one class without that order, or
//     else an undefined tensor.
template <typename Rule>
Tensor select_boxes(const Tensor& boxes, const Tensor& scores, const Tensor* idxs, double threshold,
                    std::optional<double> score_threshold, std::optional<int64_t> max_output) {
  if (score_threshold) {
    const Tensor all = wide(scores), index = indices_above(*score_threshold, all);
    const Tensor labels = idxs == nullptr ? Tensor() : index_select(idxs->to(kLong), index);
    return index_select(
        index, select_boxes<Rule>(index_select(boxes, index), index_select(all, index),
                                  idxs == nullptr ? nullptr : &labels, threshold, {}, max_output));
  }
  const int64_t n = boxes.size(0), limit = max_output.value_or(n);
  const auto indices = boxes.options().dtype(kLong);
  if (n == 0) return empty({0}, indices);

  const Tensor wide_boxes = wide(boxes), wide_scores = wide(scores);
  const Tensor labels = normalize_labels(idxs);
  if (!labels.defined()) {
    Tensor output = Rule::select_single_class(wide_boxes, wide_scores, threshold, limit, indices);
    if (output.defined()) return output;
  }
  const Selection selection(wide_scores, &labels);
  Buffer<uint8_t> keep(n);
  DETOPS_WIDE_SWITCH(wide_boxes.scalar_type(), [&] {
    const scalar_t* box = wide_boxes.const_data_ptr<scalar_t>();
    Rule::suppress(box, selection, threshold, limit, keep.data());
  });
  return selection.selected(keep.data(), indices, limit);
}

}  // namespace detops::cpu
