// SPDX-License-Identifier: MIT
#pragma once

#include "overlap.h"

// Rotated boxes: (cx, cy, w, h, angle) in pixels and degrees, counter-clockwise in an image whose y
// axis points down. The side w runs along (cos, -sin), the side h along (sin, cos).
//
// All of it is computed in double, from operations that every device and instruction set rounds
// alike: an overlap has the same bits everywhere.
namespace detops::math {

// A box with what depends on it alone. V is double or, in CPU kernels, a vector of it.
template <typename V>
struct RotatedBox {
  V x, y;  // of the centre
  V half_w, half_h;
  V cos, sin;
  V area;    // 0 where a side is not positive; NaN where a number is not finite
  V unused;  // makes it a line of cache, and a square to transpose
};

// The library's sines differ between host and device. The reduction to at most 45 degrees is exact,
// so that quarter turns are, too; the series are Taylor's.
DETOPS_HD void sin_cos_of_degrees(double degrees, double& sin, double& cos) {
  if (!(degrees > -1e9 && degrees < 1e9)) degrees = ::fmod(degrees, 360.0);  // exact as well
  if (degrees != degrees) {
    sin = cos = degrees;
    return;
  }
  const double quarters = ::floor(degrees / 90 + 0.5);
  const double x = (degrees - 90 * quarters) * 0.017453292519943295769, z = x * x;
  constexpr double kSine[] = {-1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880,
                              -1.0 / 5040,          1.0 / 120,        -1.0 / 6};
  constexpr double kCosine[] = {
      1.0 / 20922789888000, -1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320,
      -1.0 / 720,           1.0 / 24,           -1.0 / 2,        1.0 / 1};
  double s = 0, c = 0;
  for (const double factor : kSine) s = s * z + factor;
  for (const double factor : kCosine) c = c * z + factor;
  s = s * z * x + x;
  const int turn = static_cast<int>(static_cast<int64_t>(quarters) & 3);
  sin = turn == 0 ? s : (turn == 1 ? c : (turn == 2 ? -s : -c));
  cos = turn == 0 ? c : (turn == 1 ? -s : (turn == 2 ? -c : s));
}

// From cx, cy, w, h, angle.
template <typename T>
DETOPS_HD RotatedBox<double> rotated_box(const T* b) {
  RotatedBox<double> box{};
  const double w = double(b[2]), h = double(b[3]);
  box.x = double(b[0]);
  box.y = double(b[1]);
  box.half_w = 0.5 * w;
  box.half_h = 0.5 * h;
  sin_cos_of_degrees(double(b[4]), box.sin, box.cos);
  box.area = w > 0 && h > 0 ? w * h : 0;
  const double all = box.x + box.y + w + h + box.cos + box.area;
  if (!(all - all == 0)) box.area = all - all;
  return box;
}

#include "rotated_box.inl"

// The one comparison that decides suppression: IoU, rounded to T, strictly above the threshold. An
// IoU that has no value suppresses nothing.
template <typename T>
DETOPS_HD bool suppresses(const RotatedBox<double>& a, const RotatedBox<double>& b,
                          double threshold) {
  return static_cast<double>(static_cast<T>(rotated::iou(a, b))) > threshold;
}

}  // namespace detops::math
