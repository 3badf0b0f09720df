// SPDX-License-Identifier: MIT
#pragma once

#include "roi.h"

// "Fast R-CNN" (Girshick, 2015), section 2.1 (RoI pooling). Corners are rounded to whole pixels,
// and a bin is a range of pixels. As in roi.h, rows and columns are independent of each other.
namespace detops::math {

template <typename T>
struct PoolAxis {
  double start;  // first pixel of the RoI; double holds the sums below exactly
  T bin;         // size of one bin; 0 for an infinite or NaN RoI
};

// A range [begin, end) of pixels or bins.
struct PixelRange {
  int64_t begin, end;

  DETOPS_HD int64_t size() const { return end - begin; }
};

DETOPS_HD bool same(const PixelRange& a, const PixelRange& b) {
  return a.begin == b.begin && a.end == b.end;
}

// One axis of a RoI [low, high] in image pixels, at least one pixel wide. `last` is 1 if the pixel
// of `high` belongs to the RoI, and 0 if the RoI ends before it.
template <typename T>
DETOPS_HD PoolAxis<T> pool_axis(T low, T high, T spatial_scale, int last, int64_t pooled) {
  const double start = double(round(low * spatial_scale));
  const double length = double(round(high * spatial_scale)) - start;
  const T bin = T(max(length + double(last), 1.0)) / T(pooled);
  const bool finite = length - length == 0 && bin - bin == 0;
  return {start, finite ? bin : T(0)};
}

// Returns the pixels of bin `p` that lie in [0, size).
template <typename T>
DETOPS_HD PixelRange bin_range(const PoolAxis<T>& axis, int64_t p, int64_t size) {
  if (axis.bin == 0) return {0, 0};
  const double begin = axis.start + double(floor(T(p) * axis.bin));
  const double end = axis.start + double(ceil(T(p + 1) * axis.bin));
  return {static_cast<int64_t>(min(max(begin, 0.0), double(size))),
          static_cast<int64_t>(min(max(end, 0.0), double(size)))};
}

// Returns the cell of bin p, or the bins of cell i, for `pooled` bins and `cells` cells.
DETOPS_HD int64_t cell_index(int64_t p, int64_t pooled, int64_t cells) {
  return p * cells / pooled;
}
DETOPS_HD PixelRange bins_of_cell(int64_t i, int64_t pooled, int64_t cells) {
  const auto first = [&](int64_t cell) { return (cell * pooled + cells - 1) / cells; };
  return {first(i), first(i + 1)};
}

// Returns whether `value` replaces `best`, which starts at -infinity. Pixels come row by row, so
// the first of equal values stays. NaN is skipped. A bin in which nothing exceeds -infinity has the
// value of its first pixel.
template <typename T>
DETOPS_HD bool exceeds(T value, T best) {
  return value > best;
}

// Calls visit(index, weight) for the mean of bin `p`, as for RoIAlign, and only for the pixels in
// [low, high]. A position-sensitive bin ends before the last pixel of the feature map: torchvision
// has this rule, and weights trained with it depend on it.
template <typename T, typename Visit>
DETOPS_HD void visit_taps(const PoolAxis<T>& axis, int64_t p, int64_t size, double low, double high,
                          Visit&& visit) {
  const PixelRange range = bin_range(axis, p, size - 1);
  const T weight = T(1) / T(range.size());
  const int64_t begin = max(range.begin, static_cast<int64_t>(low));
  const int64_t end = min(range.end, static_cast<int64_t>(high) + 1);
  for (int64_t i = begin; i < end; ++i) visit(i, weight);
}

template <typename T, typename Visit>
DETOPS_HD void visit_pixels(const PoolAxis<T>& axis, int64_t p, int64_t size, double low,
                            double high, Visit&& visit) {
  visit_taps(axis, p, size, low, high, visit);
}

template <typename T>
DETOPS_HD int64_t max_pixels(const PoolAxis<T>& axis) {
  return axis.bin < T(1 << 20) ? static_cast<int64_t>(axis.bin) + 2 : 1 << 20;
}

}  // namespace detops::math
