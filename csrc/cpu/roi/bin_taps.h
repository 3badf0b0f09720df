// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <vector>

#include "../../math/bilinear.h"
#include "product_taps.h"

namespace detops::cpu {

// The sparse weights of the bins of a RoI: bin b is the sum over [begin[b], begin[b + 1]) of weight
// * map[position], positions counted row by row.
template <typename A>
struct BinTaps {
  const int32_t* begin;
  const int32_t* position;
  const A* weight;
  int64_t bins;
  Reads read;

  Reads reads() const { return read; }
  int64_t pixels() const { return begin[bins]; }
  int64_t scratch(int64_t) const { return 0; }
  int64_t lane_scratch() const { return 0; }

  void add_to(RoICost& cost) const {
    const double taps = double(begin[bins]);
    cost.planes += 1.5 * taps + 4 * double(bins);
    cost.positions += 2 * taps + 3 * double(bins);
    cost.in_lanes += 2.2 * taps + 8 * double(bins);
  }
};

// The taps of some RoIs, as a Batch asks for them. Bins are added one by one: as samples and what
// to multiply their sum with, or as a product of two axes.
template <typename A>
class BinTable {
 public:
  static constexpr int64_t kRoIs = 16, kLeastTaps = 1 << 19, kMostTaps = kLeastTaps;
  static constexpr bool kWholeRows = true;  // positions count them

  void clear() {
    entries_.clear();
    begin_.clear();
    position_.clear();
    weight_.clear();
  }

  // sampling.bins_of(roi) gives a function of (ph, pw, table) that adds one bin.
  template <typename Sampling>
  void add(const Sampling& sampling, int64_t roi, const Share& share, int64_t height,
           int64_t width) {
    height_ = height;
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

  // Adds the sample at (y, x), if it counts.
  void add_sample(A y, A x) {
    math::Taps<A> rows, cols;
    if (math::bilinear_taps(y, height_, rows) && math::bilinear_taps(x, width_, cols)) {
      add_sample(rows, cols);
    }
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

  // Of axes of one bin.
  void add_product(const AxisTaps<A>& rows, const AxisTaps<A>& cols, A factor) {
    if (rows.extent == 0 || cols.extent == 0) return;
    entries_.back().reads.include(ProductTaps<A>{rows, cols}.reads());
    Emitter emit(*this, rows.size() * cols.size());
    for (int64_t r = 0; r < rows.size(); ++r) {
      const A weight = rows.weight[r] * factor;
      for (int64_t c = 0; c < cols.size(); ++c) {
        emit(rows.index[r] * width_ + cols.index[c], cols.weight[c] * weight);
      }
    }
  }

  void transpose() {}  // no need: a bin adds to its positions

  BinTaps<A> operator[](int64_t i) const {
    const Entry& e = entries_[i];
    return {begin_.data() + e.begin, position_.data() + e.taps, weight_.data() + e.taps, e.bins,
            e.reads};
  }

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
  struct Emitter {
    BinTable& table;
    size_t size = table.position_.size();

    void grow_to(size_t end) {
      table.position_.resize(end);
      table.weight_.resize(end);
    }
    Emitter(BinTable& to, size_t most) : table(to) { grow_to(size + most); }
    ~Emitter() { grow_to(size); }
    void operator()(int64_t position, A weight) {
      table.position_[size] = static_cast<int32_t>(position);
      table.weight_[size] = weight;
      size += weight != 0;
    }
  };

  std::vector<Entry> entries_;
  std::vector<int32_t> begin_, position_;
  std::vector<A> weight_;
  int64_t height_ = 0, width_ = 0;

  // Of the bin that is being added.
  std::vector<Tap> taps_;
  size_t collected_ = 0;
  Reads bounds_ = Reads::none();
  std::vector<A> sums_;
};

}  // namespace detops::cpu
