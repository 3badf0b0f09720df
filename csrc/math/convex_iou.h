// SPDX-License-Identifier: MIT
#pragma once

#include "polygon.h"

// The overlap of the convex hull of a point set with a quadrilateral. With I the intersection, U
// the union and C the hull of both: iou is I / U, giou is iou - (C - U) / C ("Generalized
// Intersection over Union", 2019, equation 4). A ratio without a finite value counts as 0 in iou.
// giou is a loss: a coordinate that is not finite makes it NaN.
namespace detops::math {

struct PointSet {
  Hull hull;
  double area;  // NaN if a coordinate is not finite
};

template <typename T>
DETOPS_HD PointSet point_set(const T* numbers) {
  Point points[kSetPoints];
  for (int i = 0; i < kSetPoints; ++i) {
    points[i] = {double(numbers[2 * i]), double(numbers[2 * i + 1])};
  }
  PointSet set{};
  set.area = not_finite(points, kSetPoints);
  if (set.area == 0) {
    set.hull = convex_hull(points, kSetPoints);
    set.area = area(set.hull.at, set.hull.count);
  }
  return set;
}

// Returns NaN if the IoU has no value.
DETOPS_HD double convex_iou(const PointSet& set, const Quad& q) {
  const double of_quad = area(q);
  const double common = min(intersection(set.hull, q), min(set.area, of_quad));
  return common / (set.area + of_quad - common);
}

// Adds `by` times the derivative of the hull's area with respect to those of its corners whose
// index is below `points`.
DETOPS_HD void add_area_gradient(const Hull& hull, double by, int points, double* to) {
  for (int i = 0; i < hull.count; ++i) {
    const Point before = hull.at[(i + hull.count - 1) % hull.count];
    const Point after = hull.at[(i + 1) % hull.count];
    if (hull.of[i] >= points) continue;
    to[2 * hull.of[i]] += by * 0.5 * (after.y - before.y);
    to[2 * hull.of[i] + 1] += by * 0.5 * (before.x - after.x);
  }
}

// Adds `by` times the derivative of the intersection area with respect to the hull's corners. Each
// side contributes through its part within the quadrilateral. A point of that part moves with the
// two ends of the side, in proportion to its position between them. A side that lies on a side of
// the quadrilateral counts half, the mean of moving it either way.
DETOPS_HD void add_intersection_gradient(const Hull& hull, const Quad& q, double by, double* to) {
  Part parts[2];
  const int count = convex_parts(q, parts);
  for (int i = 0; i < hull.count; ++i) {
    const int j = (i + 1) % hull.count;
    const Point a = hull.at[i], b = hull.at[j];
    double of_a = 0, of_b = 0;
    for (int k = 0; k < count; ++k) {
      double begin = 0, end = 1, weight = parts[k].sign;
      for (int side = 0; side < parts[k].count; ++side) {
        const Point p = parts[k].at[side], r = parts[k].at[(side + 1) % parts[k].count];
        if (p.x == r.x && p.y == r.y) continue;
        const double left_a = cross(p, r, a), left_b = cross(p, r, b);
        if (left_a == 0 && left_b == 0) {
          weight *= 0.5;
        } else if (left_a <= 0 && left_b <= 0) {
          end = begin;
        } else if (left_a < 0) {
          begin = max(begin, left_a / (left_a - left_b));
        } else if (left_b < 0) {
          end = min(end, left_a / (left_a - left_b));
        }
      }
      if (!(end > begin)) continue;
      const double at_b = 0.5 * (end * end - begin * begin);
      of_b += weight * at_b;
      of_a += weight * (end - begin - at_b);
    }
    const double normal_x = by * (b.y - a.y), normal_y = by * (a.x - b.x);
    to[2 * hull.of[i]] += of_a * normal_x;
    to[2 * hull.of[i] + 1] += of_a * normal_y;
    to[2 * hull.of[j]] += of_b * normal_x;
    to[2 * hull.of[j] + 1] += of_b * normal_y;
  }
}

struct ConvexAreas {
  double common, all, around;  // I, U, C
  Hull hull;                   // C; `of` is below kSetPoints for corners of the set
};

DETOPS_HD ConvexAreas convex_areas(const PointSet& set, const Quad& q) {
  const double of_quad = area(q);
  ConvexAreas areas{};
  if (!(set.area - set.area == 0 && of_quad - of_quad == 0)) {
    areas.common = areas.all = areas.around = set.area - set.area + (of_quad - of_quad);
    return areas;
  }
  areas.common = min(intersection(set.hull, q), min(set.area, of_quad));
  areas.all = set.area + of_quad - areas.common;
  Point points[kHullPoints];
  for (int i = 0; i < set.hull.count; ++i) points[i] = set.hull.at[i];
  for (int i = 0; i < 4; ++i) points[set.hull.count + i] = q.at[i];
  areas.hull = convex_hull(points, set.hull.count + 4);
  for (int i = 0; i < areas.hull.count; ++i) {
    const int corner = areas.hull.of[i];
    areas.hull.of[i] = corner < set.hull.count ? set.hull.of[corner] : kSetPoints;
  }
  areas.around = area(areas.hull.at, areas.hull.count);
  return areas;
}

// Returns part / whole, with 0 / 0 = 0.
DETOPS_HD double share(double part, double whole) { return whole == 0 ? 0 : part / whole; }

DETOPS_HD double convex_giou(const PointSet& set, const Quad& q) {
  const ConvexAreas areas = convex_areas(set, q);
  return share(areas.common, areas.all) - share(areas.around - areas.all, areas.around);
}

// Writes grad times the derivative of convex_giou with respect to the set's 18 coordinates.
DETOPS_HD void convex_giou_gradient(const PointSet& set, const Quad& q, double grad, double* to) {
  const ConvexAreas areas = convex_areas(set, q);
  const double missing = areas.around - areas.around;  // NaN if a coordinate is not finite
  for (int i = 0; i < 2 * kSetPoints; ++i) to[i] = missing;
  if (missing != 0 || areas.around == 0 || areas.all == 0) return;
  // giou = I / U + U / C - 1, where U is the sum of the areas minus I.
  const double iou = areas.common / areas.all;
  const double by_all = grad * (1 / areas.around - iou / areas.all);
  add_area_gradient(set.hull, by_all, kSetPoints, to);
  add_intersection_gradient(set.hull, q, grad / areas.all - by_all, to);
  add_area_gradient(areas.hull, -grad * areas.all / (areas.around * areas.around), kSetPoints, to);
}

// Finds the rectangle of least area around a point set. One of its sides lies along a side of the
// hull ("Determining the minimum-area encasing rectangle", Freeman and Shapira, 1975). With u the
// direction of a side between 0 and 90 degrees and v perpendicular to it, the corners are those of
// largest u and smallest v, smallest u and v, smallest u and largest v, largest u and v. Among
// rectangles of equal area, which acute triangles have, the first side wins, counted from the
// lowest corner. If a coordinate is not finite, all corners are NaN.
template <typename T>
DETOPS_HD void min_area_polygon(const T* numbers, T* corners) {
  const PointSet set = point_set(numbers);
  if (!(set.area - set.area == 0)) {
    for (int i = 0; i < 8; ++i) corners[i] = static_cast<T>(set.area - set.area);
    return;
  }
  const Hull& hull = set.hull;
  const Point origin = hull.at[0];
  Point u{1, 0};
  double low_u = 0, high_u = 0, low_v = 0, high_v = 0, least = -1;
  for (int i = 0; hull.count > 1 && i < hull.count; ++i) {
    const Point a = hull.at[i], b = hull.at[(i + 1) % hull.count];
    const double most = max(abs(b.x - a.x), abs(b.y - a.y));  // its square may overflow
    const double x = (b.x - a.x) / most, y = (b.y - a.y) / most, length = sqrt(x * x + y * y);
    Point along{x / length, y / length};
    for (int k = 0; k < 3 && !(along.x > 0 && along.y >= 0); ++k) along = {along.y, -along.x};
    double from_u = 0, to_u = 0, from_v = 0, to_v = 0;
    for (int k = 0; k < hull.count; ++k) {
      const double dx = hull.at[k].x - origin.x, dy = hull.at[k].y - origin.y;
      const double on_u = dx * along.x + dy * along.y, on_v = dy * along.x - dx * along.y;
      from_u = min(from_u, on_u);
      to_u = max(to_u, on_u);
      from_v = min(from_v, on_v);
      to_v = max(to_v, on_v);
    }
    const double of_this = (to_u - from_u) * (to_v - from_v);
    if (least >= 0 && !(of_this < least * (1 - 1e-12))) continue;
    least = of_this;
    u = along;
    low_u = from_u;
    high_u = to_u;
    low_v = from_v;
    high_v = to_v;
  }
  const double on_u[4] = {high_u, low_u, low_u, high_u}, on_v[4] = {low_v, low_v, high_v, high_v};
  for (int i = 0; i < 4; ++i) {
    corners[2 * i] = static_cast<T>(origin.x + on_u[i] * u.x - on_v[i] * u.y);
    corners[2 * i + 1] = static_cast<T>(origin.y + on_u[i] * u.y + on_v[i] * u.x);
  }
}

}  // namespace detops::math
