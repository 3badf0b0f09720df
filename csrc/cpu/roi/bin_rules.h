// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <vector>

#include "../../math/bilinear.h"
#include "roi_plan.h"
#include "sparse_pool_kernels.h"

namespace detops::cpu {

// Bins of a pooled RoI, a rectangle of them, and the channels of the output that read the map where
// these bins say.
struct Share {
  int64_t channel, channels;
  int64_t top, left, high, wide;

  int64_t bins() const { return high * wide; }
};

// One axis of a bin whose samples lie on rows and columns: a few neighbours on the map.
template <typename A>
struct AxisTaps {
  std::vector<int32_t> index;
  std::vector<A> weight;

  void clear() {
    index.clear();
    weight.clear();
  }

  void add(const math::Taps<A>& taps) {
    add(taps.low, taps.weight_low);
    add(taps.high, taps.weight_high);
  }

 private:
  // Samples advance steadily, so an index seen before is one of the last two.
  void add(int64_t at, A w) {
    if (w == 0) return;
    for (size_t back = 1; back <= 2 && back <= index.size(); ++back) {
      if (index[index.size() - back] == at) {
        weight[index.size() - back] += w;
        return;
      }
    }
    index.push_back(static_cast<int32_t>(at));
    weight.push_back(w);
  }
};

// The rules of many RoIs, one behind another. Bins are added one by one: as samples and what to
// multiply their sum with, or as a product of two axes.
template <typename A>
class BinRuleTable {
 public:
  void clear() {
    entries_.clear();
    begin_.clear();
    position_.clear();
    weight_.clear();
  }

  // sampling.bins_of(roi) gives a function of (ph, pw, table) that adds one bin.
  template <typename Sampling>
  void add(const Sampling& sampling, int64_t roi, const Share& share, int64_t width) {
    width_ = width;
    entries_.push_back({begin_.size(), position_.size(), share.bins(), Reads::none()});
    begin_.push_back(0);
    auto bins = sampling.bins_of(roi);
    for (int64_t ph = share.top; ph < share.top + share.high; ++ph) {
      for (int64_t pw = share.left; pw < share.left + share.wide; ++pw) {
        bins(ph, pw, *this);
        begin_.push_back(static_cast<int32_t>(position_.size() - entries_.back().taps));
      }
    }
  }

  void add_sample(const math::Taps<A>& y, const math::Taps<A>& x) {
    bounds_.include({y.low, y.high + 1, {x.low, x.high + 1}});
    if (collected_ + 4 > taps_.size()) taps_.resize(2 * collected_ + 64);
    Tap* tap = taps_.data() + collected_;
    const int32_t top = static_cast<int32_t>(y.low), bottom = static_cast<int32_t>(y.high);
    const int32_t left = static_cast<int32_t>(x.low), right = static_cast<int32_t>(x.high);
    tap[0] = {top, left, y.weight_low * x.weight_low};
    tap[1] = {top, right, y.weight_low * x.weight_high};
    tap[2] = {bottom, left, y.weight_high * x.weight_low};
    tap[3] = {bottom, right, y.weight_high * x.weight_high};
    collected_ += 4;
  }

  // Samples of a bin are neighbours more often than not: the taps that they share are added up on a
  // small map of their own, unless they are so far apart that it would be a large one.
  void end_bin(A factor) {
    if (collected_ == 0) return;
    const Reads b = bounds_;
    const Tap* end = taps_.data() + collected_;
    entries_.back().reads.include(b);
    bounds_ = Reads::none();
    if (b.area() > 4 * int64_t(collected_)) {
      Emitter emit(*this, collected_);
      for (const Tap* tap = taps_.data(); tap != end; ++tap) {
        emit(tap->row * width_ + tap->col, tap->weight * factor);
      }
    } else {
      sums_.assign(b.area(), A(0));
      for (const Tap* tap = taps_.data(); tap != end; ++tap) {
        sums_[(tap->row - b.first) * b.width() + tap->col - b.columns.begin] += tap->weight;
      }
      Emitter emit(*this, b.area());
      const A* sum = sums_.data();
      for (int64_t row = b.first; row < b.last; ++row) {
        for (int64_t col = b.columns.begin; col < b.columns.end; ++col) {
          emit(row * width_ + col, *sum++ * factor);
        }
      }
    }
    collected_ = 0;
  }

  void add_product(const AxisTaps<A>& rows, const AxisTaps<A>& cols, A factor) {
    if (rows.index.empty() || cols.index.empty()) return;
    const auto [top, bottom] = std::minmax_element(rows.index.begin(), rows.index.end());
    const auto [left, right] = std::minmax_element(cols.index.begin(), cols.index.end());
    entries_.back().reads.include({*top, *bottom + 1, {*left, *right + 1}});
    Emitter emit(*this, rows.index.size() * cols.index.size());
    for (size_t r = 0; r < rows.index.size(); ++r) {
      const A weight = rows.weight[r] * factor;
      for (size_t c = 0; c < cols.index.size(); ++c) {
        emit(rows.index[r] * width_ + cols.index[c], cols.weight[c] * weight);
      }
    }
  }

  BinRule<A> rule(size_t i) const {
    const Entry& e = entries_[i];
    return {begin_.data() + e.begin, position_.data() + e.taps, weight_.data() + e.taps, e.bins};
  }
  const Reads& reads(size_t i) const { return entries_[i].reads; }

 private:
  struct Entry {
    size_t begin, taps;
    int64_t bins;
    Reads reads;
  };
  struct Tap {
    int32_t row, col;
    A weight;
  };

  // Appends up to `most` taps, without those of weight 0.
  class Emitter {
   public:
    Emitter(BinRuleTable& table, size_t most) : table_(table), size_(table.position_.size()) {
      table.position_.resize(size_ + most);
      table.weight_.resize(size_ + most);
    }
    ~Emitter() {
      table_.position_.resize(size_);
      table_.weight_.resize(size_);
    }
    void operator()(int64_t position, A weight) {
      table_.position_[size_] = static_cast<int32_t>(position);
      table_.weight_[size_] = weight;
      size_ += weight != 0;
    }

   private:
    BinRuleTable& table_;
    size_t size_;
  };

  std::vector<Entry> entries_;
  std::vector<int32_t> begin_, position_;
  std::vector<A> weight_;
  int64_t width_ = 0;

  // Of the bin that is being added.
  std::vector<Tap> taps_;
  size_t collected_ = 0;
  Reads bounds_ = Reads::none();
  std::vector<A> sums_;
};

// RoIs [begin, begin + size) of a run with their rules, in tables of kChunk RoIs that threads fill
// side by side, and what they read of the map.
template <typename A>
class BinRules {
 public:
  int64_t begin = 0, size = 0;
  Footprint footprint;

  BinRule<A> rule(int64_t i) const { return tables_[i / kChunk].rule(i % kChunk); }
  const Reads& reads(int64_t i) const { return tables_[i / kChunk].reads(i % kChunk); }

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
    parallel_for(0, chunks, 1, [&](int64_t chunk, int64_t last) {
      for (; chunk < last; ++chunk) {
        tables_[chunk].clear();
        for (int64_t i = chunk * kChunk; i < std::min((chunk + 1) * kChunk, size); ++i) {
          tables_[chunk].add(sampling, order[begin + i], share, width);
        }
      }
    });
    footprint = Footprint(height, width);
    for (int64_t i = 0; i < size; ++i) footprint.add(reads(i));
  }

 private:
  static constexpr int64_t kChunk = 16;
  static constexpr double kTaps = 1 << 19;

  std::vector<BinRuleTable<A>> tables_;
};

}  // namespace detops::cpu
