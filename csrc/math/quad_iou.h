// SPDX-License-Identifier: MIT
#pragma once

#include "polygon.h"

namespace detops::math {

// Is `a` the first in an order of all quadrilaterals?
DETOPS_HD bool comes_first(const Quad& a, const Quad& b) {
  for (int i = 0; i < 4; ++i) {
    if (a.at[i].x != b.at[i].x) return a.at[i].x > b.at[i].x;
    if (a.at[i].y != b.at[i].y) return a.at[i].y > b.at[i].y;
  }
  return false;
}

// Which one cuts the other does not depend on the order of the arguments, so neither does the
// result.
DETOPS_HD double intersection(const Quad& first, const Quad& second) {
  const bool swap = comes_first(second, first);
  Part of_a[2], of_b[2];
  const int n = convex_parts(swap ? second : first, of_a);
  const int m = convex_parts(swap ? first : second, of_b);
  double common = 0;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < m; ++j) {
      const double sign = of_a[i].sign * of_b[j].sign;
      common += sign * convex_intersection(of_a[i].at, of_a[i].count, of_b[j]);
    }
  }
  return max(common, 0.0);
}

// At most 1; NaN where there is no value.
template <Base base = Base::kUnion>
DETOPS_HD double iou(const Quad& a, const Quad& b) {
  const double of_a = area(a), of_b = area(b);
  const double common = min(intersection(a, b), min(of_a, of_b)) + (of_b - of_b);
  return common / (base == Base::kUnion ? of_a + of_b - common : of_a);
}

// The one comparison that decides suppression: IoU, rounded to T, strictly above the threshold. An
// IoU that has no value suppresses nothing.
template <typename T>
DETOPS_HD bool suppresses(const Quad& a, const Quad& b, double threshold) {
  return static_cast<double>(static_cast<T>(iou(a, b))) > threshold;
}

}  // namespace detops::math
