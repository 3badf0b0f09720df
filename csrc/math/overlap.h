// SPDX-License-Identifier: MIT
#pragma once

#include "box.h"

// Five measures of the overlap of two boxes. With I the intersection, U the union, A the area of
// the first box, C the smallest box that encloses both, c its diagonal and d the distance between
// the centres:
//   iou   I / U
//   iof   I / A
//   giou  iou - (C - U) / C                     "Generalized Intersection over Union" (2019), eq. 4
//   diou  iou - d^2 / (c^2 + eps)               "Distance-IoU Loss" (2020), eq. 6
//   ciou  diou - alpha v                        the same, eq. 8 to 11, where
//         v = 4 / pi^2 (atan(w_a / h_a) - atan(w_b / h_b))^2, alpha = v / (1 - iou + v + eps),
//         and alpha is a constant in the derivative.
// A ratio that has no finite value (0/0, infinite or NaN boxes) counts as 0.
//
// The losses of matched boxes are 1 - overlap with the rules of torchvision (`loss` in
// overlap.inl). eps is also added to U and C; in ciou it is added only in alpha, and the other
// denominators get 1e-7. The hull of inverted boxes is not clamped. Boxes that only touch have no
// gradient through their intersection. Unlike an overlap, a loss and its derivative are NaN if a
// coordinate is not finite: diverging training must be visible.
namespace detops::math {

enum class Overlap { kIoU, kIoF, kGIoU, kDIoU, kCIoU };

// The denominator of an overlap: the union, or the first box ("intersection over foreground").
enum class Base { kUnion, kFirst };

template <typename Run>
void with_kind(Overlap kind, const Run& run) {
  with_constant<Overlap::kIoU, Overlap::kIoF, Overlap::kGIoU, Overlap::kDIoU, Overlap::kCIoU>(kind,
                                                                                              run);
}

// A box and the values that depend on it alone. V is a scalar T or, in CPU kernels, a vector of T.
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

// Adds to `sum` grad times the derivative with respect to box a of overlap(a, b), or of
// overlap(b, a) if `swapped`.
template <Overlap kind, bool swapped, typename T, typename Sum>
DETOPS_HD void overlap_gradient(const OverlapBox<T>& own, const OverlapBox<T>& other, T eps, T grad,
                                Box<Sum>& sum) {
  const Box<T>&a = own.box, &b = other.box;
  // Most pairs of a matrix are disjoint, and a comparison costs less than a division.
  if ((kind == Overlap::kIoU || kind == Overlap::kIoF) &&
      !(min(a.x2, b.x2) >= max(a.x1, b.x1) && min(a.y2, b.y2) >= max(a.y1, b.y1))) {
    return;
  }
  Box<T> da{}, unused{};
  if constexpr (swapped) {
    pairwise::overlap_gradient<kind, T>(other, own, eps, grad, unused, da);
  } else {
    pairwise::overlap_gradient<kind, T>(own, other, eps, grad, da, unused);
  }
  sum.x1 += da.x1, sum.y1 += da.y1, sum.x2 += da.x2, sum.y2 += da.y2;
}

}  // namespace detops::math
