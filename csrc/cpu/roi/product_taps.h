// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <vector>

#include "../../math/roi.h"
#include "roi_plan.h"

namespace detops::cpu {

// The sparse weights of one axis of a RoI: bin p is the sum over [begin[p], begin[p + 1]) of
// weight * input[index]. For the backward pass in lanes the same, with the two sides exchanged:
// position `first + p` of the map receives the sum over its bins.
template <typename A>
struct AxisTaps {
  const int32_t* begin;
  const int32_t* index;
  const A* weight;
  int64_t first;   // first position of the map that is touched
  int64_t extent;  // and how many
  int64_t pooled;  // bins along this axis

  int64_t size() const { return begin[pooled]; }  // of those that are not transposed
};

// Of a RoI whose bins are a product of rows and columns.
template <typename A>
struct ProductTaps {
  AxisTaps<A> rows, cols;

  Reads reads() const {
    return {rows.first, rows.first + rows.extent, {cols.first, cols.first + cols.extent}};
  }
  int64_t pixels() const { return rows.size() * cols.size(); }  // that are read, bin by bin
  int64_t scratch(int64_t interleaved) const {
    return std::max(cols.extent * interleaved, cols.size());
  }
  int64_t lane_scratch() const { return rows.pooled * cols.extent * kRoIChannels; }

  void add_to(RoICost& cost) const {
    const double r = double(rows.size()), c = double(cols.size());
    const double bins = double(rows.pooled) * double(cols.pooled);
    // See cost_of_rows in roi_planes.inl.
    const double by_rows =
        r * (double(cols.extent) / cost.lanes + 2) + double(rows.pooled) * (1.5 * c) + 4 * bins;
    cost.planes += std::min(r * c + 4 * bins, by_rows);
    cost.positions += 2 * r * c + 3 * bins;
    cost.in_lanes += 2.2 * (r * double(cols.extent) + double(rows.pooled) * c) + 8 * bins;
  }
};

// Boxes on one map, as ProductTable asks for them; axis(low, high, bins) makes an axis of one.
template <typename A, typename Axis>
struct BoxSampling {
  const A* rois;               // [K, 5]
  const Tensor &pooled, &map;  // of their sizes
  int64_t twice;               // how many pixels of a bin another one reads as well
  Axis axis;

  auto axes(int64_t k) const {
    const A* roi = rois + 5 * k;
    return std::pair{axis(roi[2], roi[4], pooled.size(2)), axis(roi[1], roi[3], pooled.size(3))};
  }

  // Bins read all pixels of a map that an axis covers, and a few of them twice.
  double taps(int64_t k) const {
    const auto most = [this](const auto& of_axis, int dim) {
      const int64_t bins = pooled.size(dim);
      return double(std::min(bins * max_pixels(of_axis), map.size(dim) + twice * bins));
    };
    const auto [rows, cols] = axes(k);
    return most(rows, 2) + most(cols, 3);
  }
};
template <typename A, typename Axis>
BoxSampling(const A*, const Tensor&, const Tensor&, int64_t, Axis) -> BoxSampling<A, Axis>;

// At most kMost taps of one axis of one RoI, without a heap.
template <typename A>
class FewTaps {
 public:
  static constexpr int64_t kMost = 64;

  // Not `merged`: a pixel may come several times, and no branch hangs on where samples lie.
  template <bool merged>
  AxisTaps<A> fill(const math::RoIAxis<A>& axis, int64_t pooled, int64_t size) {
    int32_t taps = 0;
    int64_t low = size, high = -1;
    const auto add = [&](int64_t index, A weight) {
      low = std::min(low, index), high = std::max(high, index);
      index_[taps] = static_cast<int32_t>(index);
      weight_[taps++] = weight;
    };
    for (int64_t p = 0; p < pooled; ++p) {
      begin_[p] = taps;
      if constexpr (merged) {
        math::visit_pixels(axis, p, size, add);
      } else {
        math::visit_taps(axis, p, size, add);
      }
    }
    begin_[pooled] = taps;
    const int64_t extent = std::max<int64_t>(0, high - low + 1);
    return {begin_, index_, weight_, extent > 0 ? low : 0, extent, pooled};
  }

 private:
  int32_t begin_[kMost + 1], index_[kMost];
  A weight_[kMost];
};

// Owns the taps of one axis of many RoIs, one after another. Cleared and filled again, so that
// memory is allocated for the largest batch once.
template <typename A>
class AxisTable {
 public:
  void clear() {
    entries_.clear();
    begin_.clear();
    index_.clear();
    weight_.clear();
  }

  // visit_bin(p, add) calls add(index, weight) for what bin p reads of a map `size` long.
  template <typename VisitBin>
  void add(int64_t pooled, int64_t size, const VisitBin& visit_bin) {
    const size_t taps = index_.size();
    Entry& e = entries_.emplace_back(Entry{begin_.size(), taps, 0, 0, pooled});
    begin_.push_back(0);
    for (int64_t p = 0; p < pooled; ++p) {
      visit_bin(p, [&](int64_t index, A weight) {
        index_.push_back(static_cast<int32_t>(index));
        weight_.push_back(weight);
      });
      begin_.push_back(static_cast<int32_t>(index_.size() - taps));
    }
    int64_t low = size, high = -1;
    for (size_t i = taps; i < index_.size(); ++i) {
      low = std::min<int64_t>(low, index_[i]);
      high = std::max<int64_t>(high, index_[i]);
    }
    if (high >= 0) e.first = low, e.extent = high - low + 1;
  }

  // Exchanges the two sides: per touched position of the map, which bins with which weight.
  void add_transposed(const AxisTaps<A>& axis) {
    const int64_t taps = axis.size();
    const Entry& e = entries_.emplace_back(
        Entry{begin_.size(), index_.size(), axis.first, axis.extent, axis.pooled});
    begin_.resize(e.begin + axis.extent + 2, 0);
    index_.resize(e.taps + taps);
    weight_.resize(e.taps + taps);
    int32_t* next = begin_.data() + e.begin + 1;  // of a position, which filling moves to its end
    for (int64_t i = 0; i < taps; ++i) ++next[axis.index[i] - axis.first + 1];
    for (int64_t i = 0; i < axis.extent; ++i) next[i + 1] += next[i];
    for (int32_t p = 0; p < axis.pooled; ++p) {
      for (int32_t i = axis.begin[p]; i < axis.begin[p + 1]; ++i) {
        const size_t slot = e.taps + next[axis.index[i] - axis.first]++;
        index_[slot] = p;
        weight_[slot] = axis.weight[i];
      }
    }
    begin_.pop_back();
  }

  size_t size() const { return entries_.size(); }
  AxisTaps<A> operator[](size_t i) const {
    const auto [begin, taps, first, extent, pooled] = entries_[i];
    const A* weight = weight_.data() + taps;
    return {begin_.data() + begin, index_.data() + taps, weight, first, extent, pooled};
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

// The taps of some RoIs, as a Batch asks for them.
template <typename A>
class ProductTable {
 public:
  static constexpr int64_t kRoIs = 64, kLeastTaps = 1 << 14, kMostTaps = 1 << 18;
  static constexpr bool kWholeRows = false;

  void clear() { axes_.clear(); }

  // sampling.axes(roi) gives the two axes of a RoI.
  template <typename Sampling>
  void add(const Sampling& sampling, int64_t roi, const Share& share, int64_t height,
           int64_t width) {
    const auto add_axis = [&](const auto& axis, int64_t pooled, int64_t size) {
      axes_.add(pooled, size, [&](int64_t p, auto&& tap) { visit_pixels(axis, p, size, tap); });
    };
    const auto [rows, cols] = sampling.axes(roi);
    add_axis(rows, share.high, height);
    add_axis(cols, share.wide, width);
  }

  // Exchanges the sides of the taps.
  void transpose() {
    AxisTable<A> axes;
    std::swap(axes, axes_);
    for (size_t i = 0; i < axes.size(); ++i) axes_.add_transposed(axes[i]);
  }

  ProductTaps<A> operator[](int64_t i) const { return {axes_[2 * i], axes_[2 * i + 1]}; }

 private:
  AxisTable<A> axes_;  // rows and columns by turns
};

}  // namespace detops::cpu
