// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

// "Acquisition of Localization Confidence for Accurate Object Detection" (Jiang et al., 2018),
// section 3.3 (Precise RoI pooling). A bin's value is the mean of the bilinear surface over it, an
// exact integral. It is a product of one rule for rows and one for columns; this file implements
// the rule of one axis.
namespace detops::math {

template <typename T>
struct PrRoIAxis {
  T start;  // of the RoI, in pixels of the feature map; pixel i is at coordinate i
  T bin;    // size of one bin; 0 for an empty, inverted, infinite or NaN RoI
};

template <typename T>
DETOPS_HD PrRoIAxis<T> prroi_axis(T low, T high, T spatial_scale, int64_t pooled) {
  const T start = low * spatial_scale, bin = (high * spatial_scale - start) / T(pooled);
  const bool finite = start - start == 0 && bin - bin == 0;
  return {start, finite && bin > 0 ? bin : T(0)};
}

// `length` is the length of the part of [low, high] between the pixels `i` and `i` + 1.
// `moment` is that length times its mean distance from pixel `i`. Both use the difference of
// the ends, so that short bins lose no precision.
template <typename T>
DETOPS_HD void between_pixels(T low, T high, T i, T& length, T& moment) {
  const T from = max(low - i, T(0)), to = min(high - i, T(1));
  length = max(to - from, T(0));
  moment = length * (from + to) / 2;
}

// The weight of pixel `i` in the bilinear surface at `x`.
template <typename T>
DETOPS_HD T tent(T x, T i) {
  return max(T(1) - abs(x - i), T(0));
}

// Calls visit(index, weight, slope_low, slope_high) for the pixels of bin `p` that lie in
// [low, high] on a feature map of `size` pixels. The slopes are the derivatives of the weight with
// respect to the bin's ends.
template <typename T, typename Visit>
DETOPS_HD void visit_slopes(const PrRoIAxis<T>& axis, int64_t p, int64_t size, double low,
                            double high, Visit&& visit) {
  if (axis.bin == 0) return;
  const T begin = axis.start + T(p) * axis.bin, end = begin + axis.bin;
  const double from = max(double(floor(begin)), max(low, 0.0));
  const double to = min(double(floor(end)) + 1, min(high, double(size - 1)));
  if (!(from <= to)) return;
  for (auto i = static_cast<int64_t>(from); i <= static_cast<int64_t>(to); ++i) {
    T before, after, moment_before, moment_after;
    between_pixels(begin, end, T(i - 1), before, moment_before);
    between_pixels(begin, end, T(i), after, moment_after);
    const T weight = (moment_before + (after - moment_after)) / axis.bin;
    visit(i, weight, (weight - tent(begin, T(i))) / axis.bin,
          (tent(end, T(i)) - weight) / axis.bin);
  }
}

template <typename T, typename Visit>
DETOPS_HD void visit_pixels(const PrRoIAxis<T>& axis, int64_t p, int64_t size, double low,
                            double high, Visit&& visit) {
  visit_slopes(axis, p, size, low, high, [&](int64_t i, T weight, T, T) {
    if (weight != 0) visit(i, weight);
  });
}

// Converts the derivatives of a weight with respect to the ends of bin `p` to derivatives with
// respect to the two coordinates of the box.
template <typename T>
DETOPS_HD void box_slopes(T slope_low, T slope_high, int64_t p, int64_t pooled, T spatial_scale,
                          T& by_low, T& by_high) {
  const T first = T(p) / T(pooled), last = T(p + 1) / T(pooled);
  by_low = spatial_scale * (slope_low * (1 - first) + slope_high * (1 - last));
  by_high = spatial_scale * (slope_low * first + slope_high * last);
}

// The most pixels that a bin can visit.
template <typename T>
DETOPS_HD int64_t max_pixels(const PrRoIAxis<T>& axis) {
  return axis.bin < T(1 << 20) ? static_cast<int64_t>(axis.bin) + 3 : 1 << 20;
}

}  // namespace detops::math
