// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <vector>

#include "../../math/roi.h"
#include "../../math/roi_pool.h"
#include "planes.h"

// "R-FCN" (Dai et al., 2016), section 2: bin (ph, pw) of channel c reads channel
// (c * pooled_height + ph) * pooled_width + pw of the map alone. PSRoIAlign and PSRoIPool differ in
// their taps of an axis only.
namespace detops::cpu {

using math::PixelRange;

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
  P* planes;  // n <= kPSPlanes times [height, width]; any n for forward_positions
  int64_t n, plane_stride, width;
  T* pooled;  // the bin of the first channel of RoI 0
  int64_t roi_stride, channel_stride;
  int64_t first_row = 0;  // of the map, that the planes begin with
  int64_t apart = 1;      // numbers from one position to the next, for forward_positions
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

// use(rows, columns) with the axes of each RoI.
template <typename A, typename Use>
void with_axes(const PSPooling& pooling, const A* rois, const uint32_t* order, int64_t count,
               const Use& use) {
  const A scale = static_cast<A>(pooling.scale);
  const auto build = [&](const auto& axis_of) {
    using Axis = decltype(axis_of(A(), A(), int64_t()));
    std::vector<Axis> rows(count), cols(count);
    parallel_for(0, count, 1024, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        const A* roi = rois + 5 * int64_t(order[i]);
        rows[i] = axis_of(roi[2], roi[4], pooling.pooled_height);
        cols[i] = axis_of(roi[1], roi[3], pooling.pooled_width);
      }
    });
    use(rows, cols);
  };
  if (pooling.align) {
    build([&](A low, A high, int64_t pooled) {
      return math::roi_axis(low, high, scale, true, pooled, pooling.sampling_ratio);
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
  int64_t size() const { return size_; }
  // For two taps a bin and more.
  void reserve(int64_t bins) {
    begin_.reserve(bins + 1);
    grow(2 * bins);
  }

  // What bin p of an axis reads of a map `size` long.
  template <typename Axis>
  void add_bin(const Axis& axis, int64_t p, int64_t size) {
    math::visit_taps(axis, p, size, [&](int64_t index, A weight) { add(index, weight, size); });
    begin_.push_back(this->size());
  }

 private:
  // Positions advance steadily, so that one seen before is in one of the last two taps.
  void add(int64_t index, A weight, int64_t map_size) {
    const int64_t end = size();
    for (int64_t i = end - 1; i >= std::max(end - 2, begin_.back()); --i) {
      const int64_t lane = index - index_[i];
      if (lane >= 0 && lane < lanes_) {
        weight_[i * lanes_ + lane] += weight;
        return;
      }
    }
    const int64_t first = std::min(index, std::max<int64_t>(0, map_size - lanes_));
    if (end == static_cast<int64_t>(index_.size())) grow(2 * end + 16);
    index_[end] = static_cast<int32_t>(first);
    weight_[end * lanes_ + index - first] = weight;
    ++size_;
  }

  // What is beyond size() is 0.
  void grow(int64_t taps) {
    index_.resize(taps);
    weight_.resize(taps * lanes_);
  }

  int64_t lanes_, size_ = 0;
  std::vector<int64_t> begin_;
  std::vector<int32_t> index_;
  std::vector<A> weight_;
};

// The taps of one axis of all RoIs of a run, bin by bin: as many bins in one table as make some
// thousand, since each allocates.
template <typename A>
class PSAxisTable {
 public:
  PSAxisTable(int64_t pooled, int64_t count, int64_t lanes)
      : pooled_(pooled),
        count_(count),
        together_(std::clamp<int64_t>(kTogether / std::max<int64_t>(1, count), 1, pooled)),
        parts_((pooled + together_ - 1) / together_, PSTable<A>(lanes)) {}

  int64_t parts() const { return parts_.size(); }

  template <typename Axes>
  void build(int64_t part, const Axes& axes, int64_t size) {
    const int64_t first = part * together_, last = std::min(pooled_, first + together_);
    parts_[part].reserve((last - first) * count_);
    for (int64_t p = first; p < last; ++p) {
      for (const auto& axis : axes) parts_[part].add_bin(axis, p, size);
    }
  }

  PSTaps<A> bin(int64_t p) const {
    return parts_[p / together_].view().from(p % together_ * count_);
  }

 private:
  static constexpr int64_t kTogether = 2048;

  int64_t pooled_, count_, together_;
  std::vector<PSTable<A>> parts_;
};

// The taps of all RoIs of a run, bin by bin.
template <typename A>
class PSPlaneTaps {
 public:
  PSPlaneTaps(const PSPooling& pooling, const A* rois, const uint32_t* order, int64_t count,
              int64_t height, int64_t width, int64_t lanes)
      : pooled_height_(pooling.pooled_height),
        pooled_width_(pooling.pooled_width),
        count_(count),
        lanes_(lanes),
        rows_(pooled_height_, count, 1),
        cols_(pooled_width_, count, lanes) {
    with_axes(pooling, rois, order, count, [&](const auto& rows, const auto& cols) {
      const int64_t high = rows_.parts();
      parallel_for(0, high + cols_.parts(), 1, [&](int64_t i, int64_t end) {
        for (; i < std::min(end, high); ++i) rows_.build(i, rows, height);
        for (; i < end; ++i) cols_.build(i - high, cols, width);
      });
    });
  }

  PSTaps<A> rows(int64_t ph) const { return rows_.bin(ph); }
  PSTaps<A> cols(int64_t pw) const { return cols_.bin(pw); }

  // Rows [begin, end) of the map that bins of row `ph` read.
  PixelRange reach(int64_t ph, int64_t height) const {
    const PSTaps<A> taps = rows(ph);
    int64_t begin = height, end = 0;
    for (int64_t k = taps.begin[0]; k < taps.begin[count_]; ++k) {
      begin = std::min<int64_t>(begin, taps.index[k]);
      end = std::max<int64_t>(end, taps.index[k] + 1);
    }
    return {std::min(begin, end), end};
  }

  // Positions that all bins of one channel read, RoI by RoI.
  double positions() const {
    double sum = 0;
    for (int64_t i = 0; i < count_; ++i) {
      double down = 0, across = 0;
      for (int64_t p = 0; p < pooled_height_; ++p) {
        const PSTaps<A> taps = rows(p).from(i);
        down += double(taps.begin[1] - taps.begin[0]);
      }
      for (int64_t p = 0; p < pooled_width_; ++p) {
        const PSTaps<A> taps = cols(p).from(i);
        for (int64_t k = lanes_ * taps.begin[0]; k < lanes_ * taps.begin[1]; ++k) {
          across += taps.weight[k] != 0;
        }
      }
      sum += down * across;
    }
    return sum;
  }

 private:
  int64_t pooled_height_, pooled_width_, count_, lanes_;
  PSAxisTable<A> rows_, cols_;
};

// The same row of the map by row: which rows of bins read it.
template <typename A>
class PSRowTaps {
 public:
  PSRowTaps(const PSPooling& pooling, const A* rois, const uint32_t* order, int64_t count,
            int64_t height, int64_t width)
      : begin_(height + 1, 0) {
    with_axes(pooling, rois, order, count, [&](const auto& rows, const auto& cols) {
      const int64_t ph = pooling.pooled_height, pw = pooling.pooled_width;
      PSTable<A> row_taps;
      row_taps.reserve(count * ph);
      cols_.reserve(count * pw);
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t p = 0; p < ph; ++p) row_taps.add_bin(rows[i], p, height);
        for (int64_t p = 0; p < pw; ++p) cols_.add_bin(cols[i], p, width);
      }
      sort(row_taps, count, ph);
    });
  }

  const PSReach<A>* begin(int64_t row) const { return reaches_.data() + begin_[row]; }
  int64_t count(int64_t row) const { return begin_[row + 1] - begin_[row]; }
  PSTaps<A> cols() const { return cols_.view(); }

 private:
  // By row of the map; RoIs stay in order.
  void sort(const PSTable<A>& row_taps, int64_t count, int64_t ph) {
    const PSTaps<A> taps = row_taps.view();
    for (int64_t k = 0; k < row_taps.size(); ++k) ++begin_[taps.index[k] + 1];
    for (size_t row = 1; row < begin_.size(); ++row) begin_[row] += begin_[row - 1];
    reaches_.resize(row_taps.size());
    std::vector<int64_t> next = begin_;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t p = 0; p < ph; ++p) {
        for (int64_t k = taps.begin[i * ph + p]; k < taps.begin[i * ph + p + 1]; ++k) {
          reaches_[next[taps.index[k]]++] = {static_cast<int32_t>(i), static_cast<int32_t>(p),
                                             taps.weight[k]};
        }
      }
    }
  }

  std::vector<int64_t> begin_;
  std::vector<PSReach<A>> reaches_;
  PSTable<A> cols_;
};

}  // namespace detops::cpu
