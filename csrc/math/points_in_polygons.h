// SPDX-License-Identifier: MIT
#pragma once

#include "polygon.h"

// Whether a point lies within a quadrilateral: by the even-odd rule, so that of one whose sides
// cross both triangles are within. A point on a side is not, and neither is one with a NaN; nothing
// is in a quadrilateral with a number that is not finite.
namespace detops::math {

#include "points_in_polygons.inl"

// The corners (x, y) of four, or NaN.
template <typename T>
DETOPS_HD void finite_corners(const T* numbers, double* x, double* y) {
  double missing = 0;
  for (int i = 0; i < 8; ++i) missing += double(numbers[i]) - double(numbers[i]);
  for (int i = 0; i < 4; ++i) {
    x[i] = double(numbers[2 * i]) + missing;
    y[i] = double(numbers[2 * i + 1]) + missing;
  }
}

}  // namespace detops::math
