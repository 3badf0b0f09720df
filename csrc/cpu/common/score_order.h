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

// The boxes of a call whose scores are above a threshold, in the compute type.
struct Candidates {
  Tensor boxes, scores;
  Tensor labels;  // undefined if all boxes compete
  Tensor index;   // of each in the call; undefined if no threshold was given
  Options indices;

  Candidates(const Tensor& all_boxes, const Tensor& all_scores, const Tensor* idxs,
             std::optional<double> score_threshold)
      : boxes(wide(all_boxes)), scores(wide(all_scores)), indices(boxes.options().dtype(kLong)) {
    if (!score_threshold) {
      labels = normalize_labels(idxs);
      return;
    }
    index = indices_above(*score_threshold, scores);
    boxes = index_select(boxes, index);
    scores = index_select(scores, index);
    if (idxs == nullptr) return;
    const Tensor some = index_select(idxs->to(kLong), index);
    labels = normalize_labels(&some);
  }

  int64_t count() const { return scores.size(0); }

  // Turns positions among the candidates into indices of the call.
  Tensor in_call(const Tensor& kept) const {
    return index.defined() ? index_select(index, kept) : kept;
  }
};

}  // namespace detops::cpu
