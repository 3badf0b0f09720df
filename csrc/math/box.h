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

// Area of the overlap, 0 where the boxes do not meet or one of them is inverted. Rounding is
// monotone, so the result never exceeds the area of either box.
template <typename T>
DETOPS_HD T intersection(const Box<T>& a, const Box<T>& b) {
  const T w = min(a.x2, b.x2) - max(a.x1, b.x1);
  const T h = min(a.y2, b.y2) - max(a.y1, b.y1);
  return max(T(0), w) * max(T(0), h);
}

// The one comparison that decides suppression: IoU, rounded to T, strictly above the threshold,
// which stays the double it was given as. A NaN IoU (0/0, NaN or infinite boxes) suppresses
// nothing.
template <typename T>
DETOPS_HD bool suppresses(const Box<T>& a, T area_a, const Box<T>& b, T area_b, double threshold) {
  const T overlap = intersection(a, b);
  return static_cast<double>(overlap / (area_a + area_b - overlap)) > threshold;
}

// Intersection over union; a ratio that has no value (0/0, infinity/infinity) is 0, never NaN.
template <typename T>
DETOPS_HD T iou(const Box<T>& a, const Box<T>& b) {
  const T overlap = intersection(a, b);
  const T ratio = overlap / (area(a) + area(b) - overlap);
  return overlap > 0 && ratio == ratio ? ratio : T(0);
}

// d max(a, b) / da: the subgradient at a tie is shared, as torch.maximum does.
template <typename T>
DETOPS_HD T max_slope(T a, T b) {
  return a > b ? T(1) : (a == b ? T(0.5) : T(0));
}

// Adds grad * d iou(a, b) / da to `da`. By symmetry the gradient to b is iou_gradient(b, a, ...).
// With I the overlap, U the union and r = I / U: dr = (dI (1 + r) - r d(area_a)) / U.
template <typename T>
DETOPS_HD void iou_gradient(const Box<T>& a, const Box<T>& b, T grad, Box<T>& da) {
  const T w = min(a.x2, b.x2) - max(a.x1, b.x1);
  const T h = min(a.y2, b.y2) - max(a.y1, b.y1);
  const T overlap = max(T(0), w) * max(T(0), h);
  const T all = area(a) + area(b) - overlap;
  // Flat where the boxes do not meet, and where the IoU is defined as 0: a union that is not a
  // positive finite number.
  if (!(w >= 0 && h >= 0 && all > 0 && all - all == 0)) return;
  const T ratio = overlap / all;
  const T to_overlap = grad / all * (1 + ratio);
  const T to_area = grad / all * ratio;
  const T width = a.x2 - a.x1, height = a.y2 - a.y1;
  da.x1 += -to_overlap * h * max_slope(a.x1, b.x1) + to_area * height;
  da.x2 += to_overlap * h * max_slope(b.x2, a.x2) - to_area * height;
  da.y1 += -to_overlap * w * max_slope(a.y1, b.y1) + to_area * width;
  da.y2 += to_overlap * w * max_slope(b.y2, a.y2) - to_area * width;
}

}  // namespace detops::math
