// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/rotated_box.h"
#include "box_columns.h"

// Data structures of the rotated box kernels; see rotated_boxes.inl.
namespace detops::cpu {

using RotatedBox = math::RotatedBox<double>;

// A filter for pairs: the axis-aligned bounds of a rotated box, rounded outwards, and the area of
// the rotated box times a factor. The bounds of overlapping boxes have an intersection above 0. If
// the IoU is above t, that intersection exceeds the sum of the areas scaled by t / (1 + t), rounded
// slightly down.
struct RotatedBounds {
  math::Box<float> box;
  float scaled;  // minus infinity if the filter passes every pair
};

constexpr double kBoundsSlack = 0x1p-22, kFar = 1e18;

DETOPS_SHARED_INLINE float bound(double x, double slack) {
  x += slack;
  return static_cast<float>(x < kFar ? (x > -kFar ? x : -kFar) : kFar);
}

// Returns the bounds of a shape of this area within an axis-aligned box.
DETOPS_SHARED_INLINE RotatedBounds outer_bounds(const math::Box<double>& b, double area,
                                                double factor) {
  // Bounds that meet no others.
  if (!(area > 0)) return {{float(kFar), float(kFar), -float(kFar), -float(kFar)}, 0};
  const double size = math::max(-b.x1, b.x2) + math::max(-b.y1, b.y2) + (b.x2 - b.x1) +
                      (b.y2 - b.y1);  // above the magnitude of any coordinate
  // 1e-18 keeps the area in which touching bounds intersect representable in float.
  const double slack = size * kBoundsSlack + 1e-18;
  const bool in_range = size < kFar && area > 1e-30 && area < 1e30;
  return {{bound(b.x1, -slack), bound(b.y1, -slack), bound(b.x2, slack), bound(b.y2, slack)},
          in_range ? static_cast<float>(area * factor) : -__builtin_inff()};
}

// Returns the factor for a threshold t, or 0 for a tiny one, where rounding moves an IoU by more
// than the slack.
DETOPS_SHARED_INLINE double bounds_factor(double t) {
  return t < 1e-30 ? 0 : t / (1 + t) * (1 - 1e-6);
}

DETOPS_SHARED_INLINE RotatedBounds rotated_bounds(const RotatedBox& b, double factor) {
  const double c = b.cos < 0 ? -b.cos : b.cos, s = b.sin < 0 ? -b.sin : b.sin;
  const double ex = b.half_w * c + b.half_h * s, ey = b.half_w * s + b.half_h * c;
  return outer_bounds({b.x - ex, b.y - ey, b.x + ex, b.y + ey}, b.area, factor);
}

using BoundsList = NmsBoxList<float>;

}  // namespace detops::cpu
