// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/max_samples.h"

#include <vector>

#include "../../ops.h"
#include "../common/element_type.h"
#include "../common/memory.h"
#include "roi_plan.h"

// What the ops share that take the largest of some bilinear samples.
namespace detops::cpu {

// The two pixels of a sample along one axis, and what its place is told by.
template <typename A>
struct LineSample {
  int64_t low, high;
  A weight_low, weight_high, mark;
};

// Those that are on the map, and whether these are all.
template <typename A>
struct LineSamples {
  const LineSample<A>* at;
  int64_t count;
  bool all;
};

// One bin on a map of which one position's channels are neighbours.
template <typename T>
struct MaxBin {
  using A = accumulate_t<T>;
  LineSamples<A> rows, cols;
  const T* map;  // from (row_origin, col_origin) on
  int64_t row_origin, col_origin, row_stride, col_stride, channels;
  A off_map;            // the mark of a sample that is not on the map
  A *best, *row, *col;  // the maxima and their marks, room for kRoIChannels
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../roi/max_samples.inl"
#include "../simd/variants.h"

namespace detops::cpu {

// The samples of some lines of one axis.
template <typename A>
class LineTable {
 public:
  void clear() {
    samples_.clear();
    lines_.clear();
    first_ = INT32_MAX;
    last_ = 0;
  }

  // mark(i, x) of sample i, which is at x.
  template <typename Mark>
  void add(const math::SampleLine<A>& line, int64_t size, const Mark& mark) {
    const size_t begin = samples_.size();
    math::visit_line(line, size, [&](int64_t i, const math::Taps<A>& taps) {
      samples_.push_back(
          {taps.low, taps.high, taps.weight_low, taps.weight_high, mark(i, line.at(i))});
      first_ = std::min(first_, taps.low);
      last_ = std::max(last_, taps.high + 1);
    });
    const auto count = static_cast<int64_t>(samples_.size() - begin);
    lines_.push_back({begin, count, count == line.count});
  }

  LineSamples<A> operator[](int64_t i) const {
    const Line& line = lines_[i];
    return {samples_.data() + line.begin, line.count, line.all};
  }

  // Pixels [first, last) are read.
  int64_t first() const { return first_; }
  int64_t last() const { return last_; }

 private:
  struct Line {
    size_t begin;
    int64_t count;
    bool all;
  };

  std::vector<LineSample<A>> samples_;
  std::vector<Line> lines_;
  int64_t first_ = INT32_MAX, last_ = 0;
};

// Adds what a sample at (y, x) gives to its pixels of a plane.
template <typename A>
void add_sample(A* plane, int64_t height, int64_t width, A y, A x, A grad) {
  math::Taps<A> rows, cols;
  if (!math::bilinear_taps(y, height, rows) || !math::bilinear_taps(x, width, cols)) return;
  math::visit_corners(rows, cols, [&](int64_t row, int64_t col, A weight) {
    plane[row * width + col] += weight * grad;
  });
}

}  // namespace detops::cpu
