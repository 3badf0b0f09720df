// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

// The two neighbours of a coordinate along one axis, and their weights.
template <typename T>
struct Taps {
  int64_t low, high;
  T weight_low, weight_high;
};

// Returns false for a sample that contributes nothing: outside [-1, size], or NaN (hence the
// negated range test). Between -1 and 0, and between size - 1 and size, a sample has the border
// value.
template <typename T>
DETOPS_HD bool bilinear_taps(T x, int64_t size, Taps<T>& taps) {
  if (!(x >= T(-1) && x <= T(size))) return false;
  if (x < 0) x = 0;
  const int64_t low = static_cast<int64_t>(x);
  if (low >= size - 1) {
    taps = {size - 1, size - 1, T(1), T(0)};
  } else {
    const T fraction = x - T(low);
    taps = {low, low + 1, T(1) - fraction, fraction};
  }
  return true;
}

// A range of coordinates along each axis, limits included.
struct Rectangle {
  double top, bottom, left, right;
};

// The range in which samples of a feature map contribute.
DETOPS_HD Rectangle sampling_range(int64_t height, int64_t width) {
  return {-1.0, double(height), -1.0, double(width)};
}

// Visits the taps, or the pixels, of bin `p` along a whole feature map of `size` pixels; see the
// overloads with limits of each axis type.
template <typename Axis, typename Visit>
DETOPS_HD void visit_taps(const Axis& axis, int64_t p, int64_t size, Visit&& visit) {
  visit_taps(axis, p, size, -1.0, double(size), visit);
}
template <typename Axis, typename Visit>
DETOPS_HD void visit_pixels(const Axis& axis, int64_t p, int64_t size, Visit&& visit) {
  visit_pixels(axis, p, size, -1.0, double(size), visit);
}

// Calls visit(row, column, weight) for the pixels, at most four, that a sample reads.
template <typename T, typename Visit>
DETOPS_HD void visit_corners(const Taps<T>& y, const Taps<T>& x, Visit&& visit) {
  const auto corner = [&](int64_t row, int64_t col, T weight) {
    if (weight != 0) visit(row, col, weight);
  };
  corner(y.low, x.low, y.weight_low * x.weight_low);
  corner(y.low, x.high, y.weight_low * x.weight_high);
  corner(y.high, x.low, y.weight_high * x.weight_low);
  corner(y.high, x.high, y.weight_high * x.weight_high);
}

// The same for the sample at (y, x) of a feature map, unless it contributes nothing.
template <typename T, typename Visit>
DETOPS_HD void visit_corners(T y, T x, int64_t height, int64_t width, Visit&& visit) {
  Taps<T> rows, cols;
  if (!bilinear_taps(y, height, rows) || !bilinear_taps(x, width, cols)) return;
  visit_corners(rows, cols, visit);
}

// A bilinear sample lies in a cell between four pixels, in the order upper left, upper right, lower
// left, lower right. The index of a cell is that of its upper left pixel. Samples up to one pixel
// above or left of the feature map are moved into the first row or column of cells, together with
// their weights, so that there are as many cells as pixels.

// Returns the cell between four pixels, given their indices, which are -1 off the feature map.
// Returns -1 if all four are.
DETOPS_HD int corner_cell(const int* pixel) {
  for (int i = 0; i < 4; ++i) {
    if (pixel[i] >= 0) return pixel[i];
  }
  return -1;
}

template <typename T>
DETOPS_HD void clamp_to_map(int& y, int& x, T* weight) {
  if (y < 0) {
    y = 0;
    for (int i = 0; i < 2; ++i) weight[i] = weight[i + 2], weight[i + 2] = T(0);
  }
  if (x < 0) {
    x = 0;
    for (int i = 0; i < 4; i += 2) weight[i] = weight[i + 1], weight[i + 1] = T(0);
  }
}

}  // namespace detops::math
