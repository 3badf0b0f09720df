// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "../math/bilinear.h"
#include "kernels/sparse_pool.h"
#include "roi_plan.h"

namespace detops::cpu {

// Bins of a pooled RoI, a rectangle of them, and the channels of the output that read the map where
// these bins say.
struct Share {
  int64_t channel, channels;
  int64_t top, left, high, wide;

  int64_t bins() const { return high * wide; }
};

// The rows and columns of a map that a RoI reads.
struct Window {
  int64_t first_row, last_row, first_col, last_col;  // [first, last)

  bool empty() const { return first_row >= last_row; }
};

// The rules of many RoIs, one behind another.
template <typename A>
class BinRuleTable {
 public:
  void clear() {
    entries_.clear();
    begin_.clear();
    position_.clear();
    weight_.clear();
  }

  // sampling.bins_of(roi) gives a function of (ph, pw, visit) that calls visit(row taps, column
  // taps) for the samples of a bin; their sum is multiplied by what it returns.
  template <typename Sampling>
  void add(const Sampling& sampling, int64_t roi, const Share& share, int64_t width) {
    entries_.push_back(
        {begin_.size(), position_.size(), share.bins(), {INT32_MAX, 0, INT32_MAX, 0}});
    begin_.push_back(0);
    const auto bins = sampling.bins_of(roi);
    for (int64_t ph = share.top; ph < share.top + share.high; ++ph) {
      for (int64_t pw = share.left; pw < share.left + share.wide; ++pw) {
        Bounds bounds;
        taps_.clear();
        const A factor = bins(ph, pw, [&](const math::Taps<A>& y, const math::Taps<A>& x) {
          bounds.grow(y, x);
          math::visit_corners(y, x, [&](int64_t row, int64_t col, A weight) {
            taps_.push_back({static_cast<int32_t>(row), static_cast<int32_t>(col), weight});
          });
        });
        if (!taps_.empty()) add_bin(bounds, factor, width);
        begin_.push_back(static_cast<int32_t>(position_.size() - entries_.back().taps));
      }
    }
  }

  BinRule<A> rule(size_t i) const {
    const Entry& e = entries_[i];
    return {begin_.data() + e.begin, position_.data() + e.taps, weight_.data() + e.taps, e.bins};
  }
  const Window& window(size_t i) const { return entries_[i].window; }

 private:
  struct Entry {
    size_t begin, taps;
    int64_t bins;
    Window window;
  };
  struct Tap {
    int32_t row, col;
    A weight;
  };
  struct Bounds {
    int64_t top = INT32_MAX, bottom = -1, left = INT32_MAX, right = -1;

    void grow(const math::Taps<A>& y, const math::Taps<A>& x) {
      top = std::min(top, y.low);
      bottom = std::max(bottom, y.high);
      left = std::min(left, x.low);
      right = std::max(right, x.high);
    }
    int64_t wide() const { return right - left + 1; }
    int64_t area() const { return (bottom - top + 1) * wide(); }
  };

  void emit(int64_t row, int64_t col, int64_t width, A weight) {
    position_.push_back(static_cast<int32_t>(row * width + col));
    weight_.push_back(weight);
  }

  // Samples of a bin are neighbours more often than not: the taps that they share are added up on a
  // small map of their own, unless they are so far apart that it would be a large one.
  void add_bin(const Bounds& b, A factor, int64_t width) {
    Window& window = entries_.back().window;
    window = {std::min(window.first_row, b.top), std::max(window.last_row, b.bottom + 1),
              std::min(window.first_col, b.left), std::max(window.last_col, b.right + 1)};
    if (b.area() > 4 * int64_t(taps_.size())) {
      for (const Tap& tap : taps_) emit(tap.row, tap.col, width, tap.weight * factor);
      return;
    }
    const int64_t wide = b.wide();
    sums_.assign(b.area(), A(0));
    for (const Tap& tap : taps_) sums_[(tap.row - b.top) * wide + tap.col - b.left] += tap.weight;
    for (int64_t row = b.top, i = 0; row <= b.bottom; ++row) {
      for (int64_t col = b.left; col <= b.right; ++col, ++i) {
        if (sums_[i] != 0) emit(row, col, width, sums_[i] * factor);
      }
    }
  }

  std::vector<Entry> entries_;
  std::vector<int32_t> begin_, position_;
  std::vector<A> weight_;
  std::vector<Tap> taps_;
  std::vector<A> sums_;
};

// RoIs [begin, begin + size) of a run with their rules, in tables of kChunk RoIs that threads fill
// side by side, and what they read of the map.
template <typename A>
class BinRules {
 public:
  int64_t begin = 0, size = 0;
  Columns columns;
  int64_t positions = 0;  // read, RoI by RoI
  int64_t rows = 0;       // read by any of them

  BinRule<A> rule(int64_t i) const { return tables_[i / kChunk].rule(i % kChunk); }
  const Window& window(int64_t i) const { return tables_[i / kChunk].window(i % kChunk); }

  // As many RoIs as have some kTaps taps together; sampling.taps(roi) is a guess of their number.
  template <typename Sampling>
  void build(const Sampling& sampling, const uint32_t* order, const Run& run, int64_t first,
             const Share& share, int64_t height, int64_t width) {
    begin = first;
    size = 0;
    double taps = 0;
    while (begin + size < run.end && (size == 0 || taps < kTaps)) {
      taps += sampling.taps(order[begin + size++]);
    }
    const int64_t chunks = (size + kChunk - 1) / kChunk;
    if (int64_t(tables_.size()) < chunks) tables_.resize(chunks);
    at::parallel_for(0, chunks, 1, [&](int64_t chunk, int64_t last) {
      for (; chunk < last; ++chunk) {
        tables_[chunk].clear();
        for (int64_t i = chunk * kChunk; i < std::min((chunk + 1) * kChunk, size); ++i) {
          tables_[chunk].add(sampling, order[begin + i], share, width);
        }
      }
    });
    measure(height, width);
  }

 private:
  static constexpr int64_t kChunk = 16;
  static constexpr double kTaps = 1 << 21;

  void measure(int64_t height, int64_t width) {
    columns = {width, 0};
    positions = 0;
    std::vector<char> read(height, 0);
    for (int64_t i = 0; i < size; ++i) {
      const Window& w = window(i);
      if (w.empty()) continue;
      columns.begin = std::min(columns.begin, w.first_col);
      columns.end = std::max(columns.end, w.last_col);
      positions += (w.last_row - w.first_row) * (w.last_col - w.first_col);
      std::fill(read.begin() + w.first_row, read.begin() + w.last_row, 1);
    }
    columns.begin = std::min(columns.begin, columns.end);
    rows = std::count(read.begin(), read.end(), 1);
  }

  std::vector<BinRuleTable<A>> tables_;
};

}  // namespace detops::cpu
