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
  math::Taps<A> taps;
  A mark;
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
  A off_map;      // the mark of a sample that is not on the map
  A* best;        // room for kRoIChannels maxima
  int64_t apart;  // numbers from there to their rows' marks, and on to their columns'
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../roi/max_samples.inl"
#include "../simd/variants.h"

namespace detops::cpu {

// The samples of some lines of one axis.
template <typename A>
class LineTable {
 public:
  Columns read;  // of the map, by any of them

  void clear() {
    samples_.clear();
    lines_.clear();
    read = {INT32_MAX, 0};
  }

  // mark(i, x) of sample i, which is at x.
  template <typename Mark>
  void add(const math::SampleLine<A>& line, int64_t size, const Mark& mark) {
    const size_t begin = samples_.size();
    math::visit_line(line, size, [&](int64_t i, const math::Taps<A>& taps) {
      samples_.push_back({taps, mark(i, line.at(i))});
      read = {std::min(read.begin, taps.low), std::max(read.end, taps.high + 1)};
    });
    const auto count = static_cast<int64_t>(samples_.size() - begin);
    lines_.push_back({begin, count, count == line.count});
  }

  LineSamples<A> operator[](int64_t i) const {
    const Line& line = lines_[i];
    return {samples_.data() + line.begin, line.count, line.all};
  }

 private:
  struct Line {
    size_t begin;
    int64_t count;
    bool all;
  };

  std::vector<LineSample<A>> samples_;
  std::vector<Line> lines_;
};

// The backward pass: add(task, gradients, sums) with all gradients and all of the map, contiguous
// and of the type that is computed in. A task owns some planes, clears them and adds RoI after RoI:
// the sums do not depend on the threads.
template <typename Add>
void sum_in_planes(const Tensor& grad, int64_t tasks, Tensor& map, const Add& add) {
  const Tensor outer = wide(grad);
  const ScalarType type = outer.scalar_type();
  const bool in_place = map.scalar_type() == type && !is_channels_last(map);
  const Tensor sums = in_place ? map : empty(map.sizes(), map.options().dtype(type));
  const int64_t grain = tasks_per_thread(tasks, map.numel() + grad.numel());
  DETOPS_WIDE_SWITCH(type, [&] {
    const scalar_t* gradients = outer.const_data_ptr<scalar_t>();
    scalar_t* sum = sums.mutable_data_ptr<scalar_t>();
    parallel_for(0, tasks, grain, [&](int64_t task, int64_t end) {
      for (; task < end; ++task) add(task, gradients, sum);
    });
  });
  if (!in_place) map.copy_(sums);
}

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
