// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "../../math/roi.h"
#include "../../math/roi_pool.h"
#include "../common/planes.h"

// "R-FCN" (Dai et al., 2016), section 2: bin (ph, pw) of channel c reads channel
// (c * pooled_height + ph) * pooled_width + pw of the map alone. PSRoIAlign and PSRoIPool differ in
// their taps of an axis only.
namespace detops::cpu {

// What one bin of each RoI of a run reads along one axis: RoI i has the taps [begin[i],
// begin[i + 1]). A tap is a position and its weight along rows; along columns, it is as many
// neighbours as a vector has lanes, from `index` on, with a weight each, 0 for those not read.
template <typename A>
struct PSTaps {
  const int64_t* begin;
  const int32_t* index;
  const A* weight;

  PSTaps from(int64_t i) const { return {begin + i, index, weight}; }
};

// Planes are taken up to this many at a time: the taps are read once for all of them.
constexpr int64_t kPSPlanes = 4;

// One bin of all RoIs, on the planes that this bin reads: one for each channel of the output.
template <typename P, typename T>
struct PSTile {
  PSTaps<accumulate_t<std::remove_const_t<T>>> rows, cols;
  const uint32_t* order;  // [rois] numbers of the RoIs
  int64_t rois;
  // Where position (0, 0) is, or would be, of n <= kPSPlanes planes; any n for forward_positions.
  P* planes;
  int64_t n, plane_stride, width;
  T* pooled;  // the bin of the first channel of RoI 0
  int64_t roi_stride, channel_stride;
  int64_t apart = 1;  // numbers from one position to the next, for forward_positions
};

// Channels of the output that are neighbours in a sum.
constexpr int64_t kPSLanes = 16;

// Row ph of the bins of RoI i reads a row of the map with this weight.
template <typename A>
struct PSReach {
  int32_t roi, ph;
  A weight;
};

// All that reads one row of a channels_last map, for up to kPSLanes channels of the output.
template <typename T>
struct PSRow {
  using A = accumulate_t<T>;
  const PSReach<A>* reaches;
  int64_t count;
  PSTaps<A> cols;  // of bin pw of RoI i: number i * pooled_width + pw, single positions
  const uint32_t* order;
  int64_t pooled_width, bins;
  const T* pooled;      // channels_last; the first channel of RoI 0
  int64_t channels, n;  // of the output, and how many are taken
  int64_t width;
  A* sums;  // scratch, [width, bins, kPSLanes]
  T* row;   // of the map, at the first channel that is written
};

struct PSPooling {
  const char* op;
  double scale;
  int64_t pooled_height, pooled_width, sampling_ratio;
  bool align;

  int64_t bins() const { return pooled_height * pooled_width; }
};

// RoIs on one image.
template <typename A>
struct PSRun {
  const PSPooling& pooling;
  const A* rois;          // [K, 5]
  const uint32_t* order;  // [count] numbers of the RoIs
  int64_t count;
};

// use(rows, columns) with the axes of each RoI.
template <typename A, typename Use>
void with_axes(const PSRun<A>& run, const Use& use) {
  const PSPooling& p = run.pooling;
  const A scale = static_cast<A>(p.scale);
  const auto build = [&](const auto& axis_of) {
    using Axis = decltype(axis_of(A(), A(), int64_t()));
    std::vector<Axis> rows(run.count), cols(run.count);
    parallel_each(run.count, 1024, [&](int64_t i) {
      const A* roi = run.rois + 5 * int64_t(run.order[i]);
      rows[i] = axis_of(roi[2], roi[4], p.pooled_height);
      cols[i] = axis_of(roi[1], roi[3], p.pooled_width);
    });
    use(rows, cols);
  };
  if (p.align) {
    build([&](A low, A high, int64_t pooled) {
      return math::roi_axis(low, high, scale, true, pooled, p.sampling_ratio);
    });
  } else {
    build([&](A low, A high, int64_t pooled) {
      return math::pool_axis(low, high, scale, 0, pooled);
    });
  }
}

// See PSTaps.
template <typename A>
class PSTable {
 public:
  explicit PSTable(int64_t lanes = 1) : lanes_(lanes), begin_{0} {}

  PSTaps<A> view() const { return {begin_.data(), index_.data(), weight_.data()}; }

  // For two taps a bin and more.
  void reserve(int64_t bins) {
    begin_.reserve(bins + 1);
    index_.reserve(2 * bins);
    weight_.reserve(2 * bins * lanes_);
  }

  // What bin p of an axis reads of a map `size` long. Positions advance steadily, so that one seen
  // before is in one of the last two taps.
  template <typename Axis>
  void add_bin(const Axis& axis, int64_t p, int64_t size) {
    math::visit_taps(axis, p, size, [&](int64_t index, A weight) {
      const auto taps = static_cast<int64_t>(index_.size());
      for (int64_t i = taps - 1; i >= std::max(taps - 2, begin_.back()); --i) {
        const int64_t lane = index - index_[i];
        if (lane >= 0 && lane < lanes_) {
          weight_[i * lanes_ + lane] += weight;
          return;
        }
      }
      const int64_t first = std::min(index, std::max<int64_t>(0, size - lanes_));
      index_.push_back(static_cast<int32_t>(first));
      weight_.resize((taps + 1) * lanes_);
      weight_[taps * lanes_ + index - first] = weight;
    });
    begin_.push_back(index_.size());
  }

 private:
  int64_t lanes_;
  std::vector<int64_t> begin_;
  std::vector<int32_t> index_;
  std::vector<A> weight_;
};

// The taps of all RoIs of a run, bin by bin of each axis. A table has as many bins as make some
// thousand, since each table allocates.
template <typename A>
class PSPlaneTaps {
 public:
  PSPlaneTaps(const PSRun<A>& run, int64_t height, int64_t width, int64_t lanes)
      : run_(run), lanes_(lanes) {
    const int64_t high = divide_up(pooled_height_, together_);
    const int64_t wide = divide_up(pooled_width_, together_);
    rows_.resize(high);
    cols_.resize(wide, PSTable<A>(lanes));
    with_axes(run, [&](const auto& rows, const auto& cols) {
      parallel_for(high + wide, 1, [&](int64_t i, int64_t end) {
        for (; i < std::min(end, high); ++i) this->build(rows_[i], i, rows, pooled_height_, height);
        for (; i < end; ++i) this->build(cols_[i - high], i - high, cols, pooled_width_, width);
      });
    });
  }

  PSTaps<A> rows(int64_t bin) const { return of(rows_, bin / pooled_width_); }
  PSTaps<A> cols(int64_t bin) const { return of(cols_, bin % pooled_width_); }

  // The rows of the map that a bin reads of any RoI.
  math::PixelRange reach(int64_t bin) const {
    const PSTaps<A> taps = rows(bin);
    const int32_t *begin = taps.index + taps.begin[0], *end = taps.index + taps.begin[run_.count];
    if (begin == end) return {0, 0};
    const auto [first, last] = std::minmax_element(begin, end);
    return {*first, *last + 1};
  }

  // Positions that all bins of one channel read, RoI by RoI.
  double positions() const {
    const auto read = [&](int64_t i, const Axis& axis, int64_t pooled, int64_t lanes) {
      double sum = 0;
      for (int64_t p = 0; p < pooled; ++p) {
        const PSTaps<A> taps = of(axis, p).from(i);
        for (int64_t k = lanes * taps.begin[0]; k < lanes * taps.begin[1]; ++k) {
          sum += taps.weight[k] != 0;
        }
      }
      return sum;
    };
    double sum = 0;
    for (int64_t i = 0; i < run_.count; ++i) {
      sum += read(i, rows_, pooled_height_, 1) * read(i, cols_, pooled_width_, lanes_);
    }
    return sum;
  }

 private:
  using Axis = std::vector<PSTable<A>>;

  template <typename Axes>
  void build(PSTable<A>& table, int64_t i, const Axes& axes, int64_t pooled, int64_t size) {
    const int64_t first = i * together_, last = std::min(pooled, first + together_);
    table.reserve((last - first) * run_.count);
    for (int64_t p = first; p < last; ++p) {
      for (const auto& axis : axes) table.add_bin(axis, p, size);
    }
  }

  PSTaps<A> of(const Axis& axis, int64_t p) const {
    return axis[p / together_].view().from(p % together_ * run_.count);
  }

  const PSRun<A>& run_;
  const int64_t lanes_, together_ = std::max<int64_t>(1, 2048 / std::max<int64_t>(1, run_.count));
  const int64_t pooled_height_ = run_.pooling.pooled_height;
  const int64_t pooled_width_ = run_.pooling.pooled_width;
  Axis rows_, cols_;
};

// The same by row of the map: which rows of bins read it.
template <typename A>
class PSRowTaps {
 public:
  PSRowTaps(const PSRun<A>& run, int64_t height, int64_t width) : begin_(height + 1, 0) {
    const int64_t count = run.count, high = run.pooling.pooled_height;
    const int64_t wide = run.pooling.pooled_width;
    PSTable<A> rows_of_bins;
    rows_of_bins.reserve(count * high);
    cols_.reserve(count * wide);
    with_axes(run, [&](const auto& rows, const auto& cols) {
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t p = 0; p < high; ++p) rows_of_bins.add_bin(rows[i], p, height);
        for (int64_t p = 0; p < wide; ++p) cols_.add_bin(cols[i], p, width);
      }
    });
    // By row of the map; RoIs stay in order.
    const PSTaps<A> taps = rows_of_bins.view();
    const int64_t size = taps.begin[count * high];
    for (int64_t k = 0; k < size; ++k) ++begin_[taps.index[k] + 1];
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    reaches_.resize(size);
    std::vector<int64_t> next = begin_;
    for (int64_t bin = 0; bin < count * high; ++bin) {
      const auto i = static_cast<int32_t>(bin / high), ph = static_cast<int32_t>(bin % high);
      for (int64_t k = taps.begin[bin]; k < taps.begin[bin + 1]; ++k) {
        reaches_[next[taps.index[k]]++] = {i, ph, taps.weight[k]};
      }
    }
  }

  const PSReach<A>* begin(int64_t row) const { return reaches_.data() + begin_[row]; }
  int64_t count(int64_t row) const { return begin_[row + 1] - begin_[row]; }
  PSTaps<A> cols() const { return cols_.view(); }

 private:
  std::vector<int64_t> begin_;
  std::vector<PSReach<A>> reaches_;
  PSTable<A> cols_;
};

}  // namespace detops::cpu
