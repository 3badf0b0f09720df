// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <vector>

#include "../../math/roi.h"
#include "roi_align_kernels.h"

namespace detops::cpu {

// The sparse rule of one axis of one RoI with at most kMost taps, without a heap.
template <typename A>
class SmallRule {
 public:
  static constexpr int64_t kMost = 64;

  AxisRule<A> fill(const math::RoIAxis<A>& axis, int64_t pooled, int64_t size) {
    int32_t taps = 0;
    int64_t low = size, high = -1;
    for (int64_t p = 0; p < pooled; ++p) {
      begin_[p] = taps;
      math::visit_pixels(axis, p, size, [&](int64_t index, A weight) {
        low = std::min(low, index), high = std::max(high, index);
        index_[taps] = static_cast<int32_t>(index);
        weight_[taps++] = weight;
      });
    }
    begin_[pooled] = taps;
    const int64_t extent = std::max<int64_t>(0, high - low + 1);
    return {begin_, index_, weight_, extent > 0 ? low : 0, extent, pooled};
  }

 private:
  int32_t begin_[kMost + 1], index_[kMost];
  A weight_[kMost];
};

// Owns the sparse rules of one axis of many RoIs, one after another; see AxisRule. Cleared and
// filled again, so that memory is allocated for the largest batch once.
template <typename A>
class RuleTable {
 public:
  void clear() {
    entries_.clear();
    begin_.clear();
    index_.clear();
    weight_.clear();
  }

  void add(const math::RoIAxis<A>& axis, int64_t pooled, int64_t size) {
    const size_t taps = index_.size();
    entries_.push_back({begin_.size(), taps, 0, 0, pooled});
    begin_.push_back(0);
    for (int64_t p = 0; p < pooled; ++p) {
      const size_t start = index_.size();
      math::visit_taps(axis, p, size,
                       [&](int64_t index, A weight) { add_tap(start, index, weight); });
      begin_.push_back(static_cast<int32_t>(index_.size() - taps));
    }
    int64_t low = size, high = -1;
    for (size_t i = taps; i < index_.size(); ++i) {
      low = std::min<int64_t>(low, index_[i]);
      high = std::max<int64_t>(high, index_[i]);
    }
    if (high >= 0) entries_.back().first = low, entries_.back().extent = high - low + 1;
  }

  // Exchanges the two sides of `rule`: per touched position of the map, which bins with which
  // weight.
  void add_transposed(const AxisRule<A>& rule) {
    const int32_t taps = rule.begin[rule.pooled];
    entries_.push_back({begin_.size(), index_.size(), rule.first, rule.extent, rule.pooled});
    begin_.resize(begin_.size() + rule.extent + 1, 0);
    index_.resize(index_.size() + taps);
    weight_.resize(weight_.size() + taps);
    int32_t* begin = begin_.data() + entries_.back().begin;
    int32_t* index = index_.data() + entries_.back().taps;
    A* weight = weight_.data() + entries_.back().taps;
    for (int32_t i = 0; i < taps; ++i) ++begin[rule.index[i] - rule.first + 1];
    for (int64_t i = 0; i < rule.extent; ++i) begin[i + 1] += begin[i];
    for (int32_t p = 0; p < rule.pooled; ++p) {
      for (int32_t i = rule.begin[p]; i < rule.begin[p + 1]; ++i) {
        const int32_t slot = begin[rule.index[i] - rule.first]++;
        index[slot] = p;
        weight[slot] = rule.weight[i];
      }
    }
    // Filling moved every start to its end.
    for (int64_t i = rule.extent; i > 0; --i) begin[i] = begin[i - 1];
    begin[0] = 0;
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

  // Samples advance steadily, so an index seen before is one of the last two.
  void add_tap(size_t start, int64_t index, A weight) {
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

  std::vector<Entry> entries_;
  std::vector<int32_t> begin_, index_;
  std::vector<A> weight_;
};

// Rows and columns of a batch of RoIs on one map, in tables of kChunk RoIs that threads fill side
// by side.
template <typename A>
class RoIRules {
 public:
  // Bounds for the taps of a batch; 8 bytes each with a float.
  static constexpr int64_t kLeastTaps = 1 << 14, kMostTaps = 1 << 18;

  // axes_of(i, rows, cols) gives the two axes of RoI i, for i < most. Takes as many RoIs as have
  // some `most_taps` taps together, at least one; returns how many.
  template <typename Axes>
  int64_t build(int64_t most, int64_t most_taps, int64_t height, int64_t width,
                int64_t pooled_height, int64_t pooled_width, const Axes& axes_of) {
    axes_.clear();
    for (double taps = 0;
         int64_t(axes_.size()) < std::min(most, kBatch) && taps < double(most_taps);) {
      axes_.emplace_back();
      auto& [rows, cols] = axes_.back();
      axes_of(axes_.size() - 1, rows, cols);
      taps += double(std::min(pooled_height * math::most_pixels(rows), height + 2 * pooled_height));
      taps += double(std::min(pooled_width * math::most_pixels(cols), width + 2 * pooled_width));
    }
    for_each_chunk([&](int64_t begin, int64_t end, Chunk& chunk) {
      for (int64_t i = begin; i < end; ++i) {
        chunk.rows.add(axes_[i].rows, pooled_height, height);
        chunk.cols.add(axes_[i].cols, pooled_width, width);
      }
    });
    return axes_.size();
  }

  // Exchanges the sides of all rules.
  void transpose() {
    for_each_chunk(
        [&](int64_t begin, int64_t end, Chunk& chunk) {
          RuleTable<A> rows, cols;
          std::swap(rows, chunk.rows);
          std::swap(cols, chunk.cols);
          for (int64_t i = begin; i < end; ++i) {
            chunk.rows.add_transposed(rows[i - begin]);
            chunk.cols.add_transposed(cols[i - begin]);
          }
        },
        false);
  }

  AxisRule<A> rows(int64_t i) const { return chunks_[i / kChunk].rows[i % kChunk]; }
  AxisRule<A> cols(int64_t i) const { return chunks_[i / kChunk].cols[i % kChunk]; }

 private:
  static constexpr int64_t kBatch = 1024, kChunk = 64;

  struct Axes {
    math::RoIAxis<A> rows, cols;
  };
  struct Chunk {
    RuleTable<A> rows, cols;
  };

  template <typename Fill>
  void for_each_chunk(const Fill& fill, bool clear = true) {
    const int64_t count = axes_.size(), chunks = (count + kChunk - 1) / kChunk;
    if (int64_t(chunks_.size()) < chunks) chunks_.resize(chunks);
    parallel_for(0, chunks, 2, [&](int64_t i, int64_t last) {
      for (; i < last; ++i) {
        if (clear) {
          chunks_[i].rows.clear();
          chunks_[i].cols.clear();
        }
        fill(i * kChunk, std::min((i + 1) * kChunk, count), chunks_[i]);
      }
    });
  }

  std::vector<Axes> axes_;
  std::vector<Chunk> chunks_;
};

}  // namespace detops::cpu
