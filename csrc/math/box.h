// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

// A box in pixels, corners (x1, y1) and (x2, y2). Widths are x2 - x1: no legacy +1.
template <typename T>
struct Box {
  T x1, y1, x2, y2;
};

template <typename T>
DETOPS_HD T area(const Box<T>& b) {
  return (b.x2 - b.x1) * (b.y2 - b.y1);
}

// Area of the intersection: 0 if the boxes are disjoint or one of them is inverted. Rounding is
// monotone, so the result never exceeds the area of either box.
template <typename T>
DETOPS_HD T intersection(const Box<T>& a, const Box<T>& b) {
  const T w = min(a.x2, b.x2) - max(a.x1, b.x1);
  const T h = min(a.y2, b.y2) - max(a.y1, b.y1);
  return max(T(0), w) * max(T(0), h);
}

// The only test that decides suppression: the IoU, rounded to T, must be strictly above the
// threshold, which stays an unrounded double. A NaN IoU (0/0, NaN or infinite boxes) does not
// suppress.
template <typename T>
DETOPS_HD bool suppresses(const Box<T>& a, const Box<T>& b, T area_b, double threshold) {
  const T overlap = intersection(a, b);
  // Most pairs are disjoint, and a comparison costs less than a division.
  if (!(overlap > 0) && threshold >= 0) return false;
  return static_cast<double>(overlap / (area(a) + area_b - overlap)) > threshold;
}

}  // namespace detops::math
