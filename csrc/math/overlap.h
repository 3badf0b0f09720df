// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "box.h"

// The overlap of two boxes, four ways. With I the intersection, U the union, C the smallest box
// that encloses both, c its diagonal and d the distance of the centres:
//   iou   I / U
//   giou  iou - (C - U) / C                     "Generalized Intersection over Union" (2019), eq. 4
//   diou  iou - d^2 / (c^2 + eps)               "Distance-IoU Loss" (2020), eq. 6
//   ciou  diou - alpha v                        the same, eq. 8 to 11, where
//         v = 4 / pi^2 (atan(w_a / h_a) - atan(w_b / h_b))^2, alpha = v / (1 - iou + v + eps),
//         and alpha counts as a constant in the derivative.
// A ratio that has no finite value (0/0, infinite or NaN boxes) counts as 0.
namespace detops::math {

enum class Overlap { kIoU, kGIoU, kDIoU, kCIoU };

// Calls run(std::integral_constant<Overlap, kind>()): on the host, the kind as a constant.
template <typename Run>
void with_kind(Overlap kind, const Run& run) {
  switch (kind) {
    case Overlap::kIoU:
      return run(std::integral_constant<Overlap, Overlap::kIoU>());
    case Overlap::kGIoU:
      return run(std::integral_constant<Overlap, Overlap::kGIoU>());
    case Overlap::kDIoU:
      return run(std::integral_constant<Overlap, Overlap::kDIoU>());
    case Overlap::kCIoU:
      return run(std::integral_constant<Overlap, Overlap::kCIoU>());
  }
}

// A box with what depends on it alone. V is a number T or, in CPU kernels, a vector of T.
template <typename V>
struct OverlapBox {
  Box<V> box;
  V area, angle;  // atan(width / height), for ciou only
};

#include "overlap.inl"

template <Overlap kind, typename T>
DETOPS_HD OverlapBox<T> overlap_box(const Box<T>& b) {
  return {b, area(b),
          kind == Overlap::kCIoU ? pairwise::finite_or_zero(atan((b.x2 - b.x1) / (b.y2 - b.y1)))
                                 : T(0)};
}

// d max(a, b) / da: the subgradient at a tie is shared, as torch.maximum does.
template <typename T>
DETOPS_HD T max_slope(T a, T b) {
  return a > b ? T(1) : (a == b ? T(0.5) : T(0));
}

// The part that each kind subtracts from iou; see overlap_gradient.
template <Overlap kind, typename T>
DETOPS_HD void penalty_gradient(const OverlapBox<T>& first, const OverlapBox<T>& second, T iou,
                                T eps, T grad, Box<T>& da) {
  const Box<T>&a = first.box, &b = second.box;
  const T cw = max(a.x2, b.x2) - min(a.x1, b.x1), ch = max(a.y2, b.y2) - min(a.y1, b.y1);
  if (!(cw >= 0 && ch >= 0)) return;
  // The enclosing box grows outwards with the sides of `a` that make it up.
  T to_cw, to_ch;
  if (kind == Overlap::kGIoU) {
    // (C - U) / C: through C here, through U = area_a + area_b - I below.
    const T w = min(a.x2, b.x2) - max(a.x1, b.x1), h = min(a.y2, b.y2) - max(a.y1, b.y1);
    const T all = first.area + second.area - max(T(0), w) * max(T(0), h), hull = cw * ch;
    if (!(hull > 0 && hull - hull == 0 && all - all == 0)) return;
    to_cw = grad * all / hull / cw;
    to_ch = grad * all / hull / ch;
    const T to_union = -grad / hull;
    const T width = a.x2 - a.x1, height = a.y2 - a.y1;
    const T to_w = w >= 0 && h >= 0 ? -to_union * h : T(0);
    const T to_h = w >= 0 && h >= 0 ? -to_union * w : T(0);
    da.x1 += -to_union * height - to_w * max_slope(a.x1, b.x1);
    da.x2 += to_union * height + to_w * max_slope(b.x2, a.x2);
    da.y1 += -to_union * width - to_h * max_slope(a.y1, b.y1);
    da.y2 += to_union * width + to_h * max_slope(b.y2, a.y2);
  } else {
    const T dx = T(0.5) * (a.x1 + a.x2) - T(0.5) * (b.x1 + b.x2);
    const T dy = T(0.5) * (a.y1 + a.y2) - T(0.5) * (b.y1 + b.y2);
    const T diagonal = cw * cw + ch * ch + eps, distance = dx * dx + dy * dy;
    if (!(diagonal > 0 && diagonal - diagonal == 0 && distance == distance)) return;
    const T to_d = grad / diagonal;
    da.x1 += to_d * dx;
    da.x2 += to_d * dx;
    da.y1 += to_d * dy;
    da.y2 += to_d * dy;
    to_cw = -2 * to_d * distance / diagonal * cw;
    to_ch = -2 * to_d * distance / diagonal * ch;
    if (kind == Overlap::kCIoU) {
      constexpr T kScale = T(0.40528473456935108577551785283891);
      const T turn = first.angle - second.angle, v = kScale * turn * turn;
      const T width = a.x2 - a.x1, height = a.y2 - a.y1, square = width * width + height * height;
      const T to_angle =
          grad * pairwise::finite_or_zero(v / (1 - iou + v + eps)) * 2 * kScale * turn;
      if (square > 0 && square - square == 0) {
        da.x1 -= to_angle * height / square;
        da.x2 += to_angle * height / square;
        da.y1 += to_angle * width / square;
        da.y2 -= to_angle * width / square;
      }
    }
  }
  da.x1 -= to_cw * max_slope(b.x1, a.x1);
  da.x2 += to_cw * max_slope(a.x2, b.x2);
  da.y1 -= to_ch * max_slope(b.y1, a.y1);
  da.y2 += to_ch * max_slope(a.y2, b.y2);
}

// Adds grad * d overlap(a, b) / da to `da`; all kinds are symmetric, so the gradient to b is
// overlap_gradient(b, a, ...). With r = I / U: dr = (dI (1 + r) - r d(area_a)) / U.
template <Overlap kind, typename T>
DETOPS_HD void overlap_gradient(const OverlapBox<T>& first, const OverlapBox<T>& second, T eps,
                                T grad, Box<T>& da) {
  const Box<T>&a = first.box, &b = second.box;
  const T w = min(a.x2, b.x2) - max(a.x1, b.x1);
  const T h = min(a.y2, b.y2) - max(a.y1, b.y1);
  const T meet = max(T(0), w) * max(T(0), h), all = first.area + second.area - meet;
  T ratio = 0;
  // Flat where the boxes do not meet, and where the IoU is defined as 0: a union that is not a
  // positive finite number.
  if (w >= 0 && h >= 0 && all > 0 && all - all == 0) {
    ratio = meet / all;
    const T to_meet = grad / all * (1 + ratio);
    const T to_area = grad / all * ratio;
    const T width = a.x2 - a.x1, height = a.y2 - a.y1;
    da.x1 += -to_meet * h * max_slope(a.x1, b.x1) + to_area * height;
    da.x2 += to_meet * h * max_slope(b.x2, a.x2) - to_area * height;
    da.y1 += -to_meet * w * max_slope(a.y1, b.y1) + to_area * width;
    da.y2 += to_meet * w * max_slope(b.y2, a.y2) - to_area * width;
  }
  if (kind != Overlap::kIoU) penalty_gradient<kind>(first, second, ratio, eps, -grad, da);
}

}  // namespace detops::math
