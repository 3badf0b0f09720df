// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "../math/roi.h"
#include "kernels/roi_align.h"

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

// The rules of many RoIs, one behind another.
template <typename A>
class RuleTable {
 public:
  void clear() {
    entries_.clear();
    begin_.clear();
    index_.clear();
    weight_.clear();
  }

  void add(const AxisRule<A>& rule, int64_t positions) {
    entries_.push_back({begin_.size(), index_.size(), rule.first, rule.extent, rule.pooled});
    const int32_t taps = rule.begin[positions];
    begin_.insert(begin_.end(), rule.begin, rule.begin + positions + 1);
    index_.insert(index_.end(), rule.index, rule.index + taps);
    weight_.insert(weight_.end(), rule.weight, rule.weight + taps);
  }

  AxisRule<A> operator[](size_t i) const {
    const Entry& e = entries_[i];
    return {begin_.data() + e.begin,
            index_.data() + e.taps,
            weight_.data() + e.taps,
            e.first,
            e.extent,
            e.pooled};
  }

 private:
  struct Entry {
    size_t begin, taps;
    int64_t first, extent, pooled;
  };
  std::vector<Entry> entries_;
  std::vector<int32_t> begin_, index_;
  std::vector<A> weight_;
};

// Rows and columns of a batch of RoIs on one map, in tables of kChunk RoIs that threads fill side
// by side.
template <typename A>
class RoIRules {
 public:
  static constexpr int64_t kBatch = 1024, kChunk = 64;

  // axis(i, rows, cols) gives the two axes of RoI i. `transposed` for the backward pass.
  template <typename Axes>
  void build(int64_t count, int64_t height, int64_t width, int64_t pooled_height,
             int64_t pooled_width, bool transposed, const Axes& axes) {
    const int64_t chunks = (count + kChunk - 1) / kChunk;
    at::parallel_for(0, chunks, 2, [&](int64_t chunk, int64_t last) {
      AxisRuleStorage<A> rule, exchanged;
      const auto add = [&](RuleTable<A>& table, const math::RoIAxis<A>& axis, int64_t pooled,
                           int64_t size) {
        rule.build(axis, pooled, size);
        if (!transposed) return table.add(rule.view(), pooled);
        exchanged.transpose(rule.view());
        table.add(exchanged.view(), rule.view().extent);
      };
      for (; chunk < last; ++chunk) {
        rows_[chunk].clear();
        cols_[chunk].clear();
        for (int64_t i = chunk * kChunk; i < std::min((chunk + 1) * kChunk, count); ++i) {
          math::RoIAxis<A> row, col;
          axes(i, row, col);
          add(rows_[chunk], row, pooled_height, height);
          add(cols_[chunk], col, pooled_width, width);
        }
      }
    });
  }

  AxisRule<A> rows(int64_t i) const { return rows_[i / kChunk][i % kChunk]; }
  AxisRule<A> cols(int64_t i) const { return cols_[i / kChunk][i % kChunk]; }

 private:
  RuleTable<A> rows_[kBatch / kChunk], cols_[kBatch / kChunk];
};

}  // namespace detops::cpu
