// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "../math/roi.h"
#include "kernels.h"

namespace detops::cpu {

// Owns the sparse rule of one axis of one RoI; see AxisRule. Rebuilt in place, so that memory is
// allocated for the largest RoI once.
template <typename A>
class AxisRuleStorage {
 public:
  AxisRule<A> view() const {
    return {begin_.data(), index_.data(), weight_.data(), first_, extent_, pooled_};
  }

  void build(const math::RoIAxis<A>& axis, int64_t pooled, int64_t size) {
    pooled_ = pooled;
    begin_.assign(1, 0);
    index_.clear();
    weight_.clear();
    for (int64_t p = 0; p < pooled; ++p) {
      const size_t start = index_.size();
      math::visit_taps(axis, p, size, [&](int64_t index, A weight) { add(start, index, weight); });
      begin_.push_back(static_cast<int32_t>(index_.size()));
    }
    int64_t low = size, high = -1;
    for (const int32_t index : index_) {
      low = std::min<int64_t>(low, index);
      high = std::max<int64_t>(high, index);
    }
    first_ = high < 0 ? 0 : low;
    extent_ = high < 0 ? 0 : high - low + 1;
  }

  // Exchanges the two sides of `rule`: per touched position of the map, which bins with which
  // weight.
  void transpose(const AxisRule<A>& rule) {
    first_ = rule.first;
    extent_ = rule.extent;
    pooled_ = rule.pooled;
    const int32_t taps = rule.begin[rule.pooled];
    begin_.assign(extent_ + 1, 0);
    index_.resize(taps);
    weight_.resize(taps);
    for (int32_t i = 0; i < taps; ++i) ++begin_[rule.index[i] - first_ + 1];
    for (int64_t i = 0; i < extent_; ++i) begin_[i + 1] += begin_[i];
    for (int32_t p = 0; p < pooled_; ++p) {
      for (int32_t i = rule.begin[p]; i < rule.begin[p + 1]; ++i) {
        const int32_t slot = begin_[rule.index[i] - first_]++;
        index_[slot] = p;
        weight_[slot] = rule.weight[i];
      }
    }
    // Filling moved every start to its end.
    for (int64_t i = extent_; i > 0; --i) begin_[i] = begin_[i - 1];
    begin_[0] = 0;
  }

 private:
  // Samples advance steadily, so an index seen before is one of the last two.
  void add(size_t start, int64_t index, A weight) {
    for (size_t back = 1; back <= 2 && back <= index_.size() - start; ++back) {
      const size_t i = index_.size() - back;
      if (index_[i] == index) {
        weight_[i] += weight;
        return;
      }
    }
    index_.push_back(static_cast<int32_t>(index));
    weight_.push_back(weight);
  }

  std::vector<int32_t> begin_, index_;
  std::vector<A> weight_;
  int64_t first_ = 0, extent_ = 0, pooled_ = 0;
};

template <typename A>
struct RoIRules {
  AxisRuleStorage<A> rows, cols;
};

}  // namespace detops::cpu
