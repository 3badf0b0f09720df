// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/rotated_box.h"
#include "../nms/nms_boxes.h"

// What the kernels of rotated boxes read and write; see rotated_boxes.inl.
namespace detops::cpu {

using RotatedBox = math::RotatedBox<double>;

// An upright box around a rotated one, rounded outwards, and the area of the rotated one times a
// factor: a filter for pairs. Overlapping boxes have bounds whose intersection exceeds 0; an IoU
// above t implies that it exceeds the sum of areas scaled by t / (1 + t), rounded a little down.
struct RotatedBounds {
  math::Box<float> box;
  float scaled;  // minus infinity where the filter lets everything pass
};

constexpr double kBoundsSlack = 0x1p-22, kFar = 1e18;

DETOPS_SHARED_INLINE float bound(double x, double slack) {
  x += slack;
  return static_cast<float>(x < kFar ? (x > -kFar ? x : -kFar) : kFar);
}

// Of what has this area and lies within an upright box.
DETOPS_SHARED_INLINE RotatedBounds outer_bounds(const math::Box<double>& b, double area,
                                                double factor) {
  // A box that meets nothing.
  if (!(area > 0)) return {{float(kFar), float(kFar), -float(kFar), -float(kFar)}, 0};
  const double size = math::max(-b.x1, b.x2) + math::max(-b.y1, b.y2) + (b.x2 - b.x1) +
                      (b.y2 - b.y1);  // above the largest coordinate
  // Products of touching bounds are still numbers that float has.
  const double slack = size * kBoundsSlack + 1e-18;
  const bool plain = size < kFar && area > 1e-30 && area < 1e30;
  return {{bound(b.x1, -slack), bound(b.y1, -slack), bound(b.x2, slack), bound(b.y2, slack)},
          plain ? static_cast<float>(area * factor) : -__builtin_inff()};
}

// For a threshold t. Near the smallest numbers rounding moves an IoU by more than the slack.
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
