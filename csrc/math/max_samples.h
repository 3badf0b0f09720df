// SPDX-License-Identifier: MIT
#pragma once

#include <limits>

#include "roi.h"
#include "roi_pool.h"

// The maximum of bilinear samples on a grid: RoIAlign with max pooling ("Mask R-CNN", He et al.,
// 2017, section 3), and the borders of "BorderDet" (Qiu et al., 2020, section 3.2).
namespace detops::math {

// Samples of one axis at origin, origin + step, ...
template <typename T>
struct SampleLine {
  T origin, step;
  int64_t count;

  DETOPS_HD T at(int64_t i) const { return origin + T(i) * step; }
};

// Returns the samples of bin `p` of a RoI.
template <typename T>
DETOPS_HD SampleLine<T> bin_line(const RoIAxis<T>& axis, int64_t p) {
  const T step = axis.count > 0 ? axis.bin / axis.count : T(0);
  return {axis.start + T(p) * axis.bin + step / 2, step, static_cast<int64_t>(axis.count)};
}

// Calls visit(i, taps) for the samples that contribute on a feature map of `size` pixels.
template <typename T, typename Visit>
DETOPS_HD void visit_line(const SampleLine<T>& line, int64_t size, Visit&& visit) {
  int64_t first = 0, last = line.count;
  if (last > 16) {
    const double step = line.step;
    clip_samples(double(line.origin) - step / 2, step, -1.0, double(size), first, last);
  }
  for (int64_t i = first; i < last; ++i) {
    Taps<T> taps;
    if (bilinear_taps(line.at(i), size, taps)) visit(i, taps);
  }
}

// The coordinate of a sample off the feature map: it reads no pixels there.
constexpr double kOffMap = -2;

// A sample's value and its indices on the two lines, or -1 for a sample off the feature map.
template <typename T>
struct LargestSample {
  T value;
  int64_t row, col;
};

// As in RoI pooling, the first of equal samples wins, NaN is skipped, and if nothing exceeds
// -infinity the result is the first sample on the feature map. Samples off the feature map have the
// value 0 and come last. A grid without samples has the value 0, too. read(row, col) returns a
// pixel.
template <typename T, typename Read>
DETOPS_HD LargestSample<T> largest_sample(const SampleLine<T>& rows, const SampleLine<T>& cols,
                                          int64_t height, int64_t width, Read&& read) {
  LargestSample<T> best{-std::numeric_limits<T>::infinity(), -1, -1}, first = best;
  int64_t seen = 0;
  visit_line(rows, height, [&](int64_t i, const Taps<T>& y) {
    visit_line(cols, width, [&](int64_t j, const Taps<T>& x) {
      T value = 0;
      visit_corners(y, x,
                    [&](int64_t row, int64_t col, T weight) { value += weight * read(row, col); });
      if (seen++ == 0) first = {value, i, j};
      if (exceeds(value, best.value)) best = {value, i, j};
    });
  });
  const bool some_off_map = seen == 0 || seen < rows.count * cols.count;
  if (some_off_map && exceeds(T(0), best.value)) return {T(0), -1, -1};
  return best.row < 0 ? first : best;
}

// The samples of a border. One of the lines has a single sample and a step of 0, the other has all
// samples.
template <typename T>
struct Border {
  SampleLine<T> rows, cols;
};

// Borders are 0 top, 1 left, 2 bottom, 3 right. The first two begin at (x1, y1); the others begin
// at (x2, y2) and run back. `box` is (x1, y1, x2, y2) in pixels of the feature map.
template <typename T>
DETOPS_HD Border<T> border_lines(const T* box, int64_t border, int64_t pool_size) {
  const bool reverse = border >= 2, across = border % 2 == 0;
  const T *corner = box + (reverse ? 2 : 0), size = across ? box[2] - box[0] : box[3] - box[1];
  const T step = (reverse ? -size : size) / T(pool_size);
  const SampleLine<T> row{corner[1], across ? T(0) : step, across ? 1 : pool_size + 1};
  const SampleLine<T> col{corner[0], across ? step : T(0), across ? pool_size + 1 : 1};
  return {row, col};
}

// Computes the position of sample `i`. An invalid index gives a position off the feature map.
template <typename T>
DETOPS_HD void border_sample(const T* box, int64_t border, int64_t pool_size, int64_t i, T& y,
                             T& x) {
  y = x = T(kOffMap);
  if (i < 0 || i > pool_size) return;
  const Border<T> samples = border_lines(box, border, pool_size);
  y = samples.rows.at(i);
  x = samples.cols.at(i);
}

}  // namespace detops::math
