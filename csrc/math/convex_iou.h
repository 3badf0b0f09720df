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
DETOPS_HD PointSet point_set(const T* coords) {
  Point points[kSetPoints];
  for (int i = 0; i < kSetPoints; ++i) {
    points[i] = {double(coords[2 * i]), double(coords[2 * i + 1])};
  }
  PointSet set{};
  set.area = nan_if_not_finite(points, kSetPoints);
  if (set.area == 0) {
    set.hull = convex_hull(points, kSetPoints);
    set.area = area(set.hull.corners, set.hull.count);
  }
  return set;
}

// Returns NaN if the IoU has no value.
DETOPS_HD double convex_iou(const PointSet& set, const Quad& q) {
  const double quad_area = area(q);
  const double inter = min(intersection(set.hull, q), min(set.area, quad_area));
  return inter / (set.area + quad_area - inter);
}

// Adds `scale` times the derivative of the hull's area with respect to those of its corners whose
// index is below `points`.
DETOPS_HD void add_area_gradient(const Hull& hull, double scale, int points, double* to) {
  for (int i = 0; i < hull.count; ++i) {
    const Point previous = hull.corners[(i + hull.count - 1) % hull.count];
    const Point next = hull.corners[(i + 1) % hull.count];
    if (hull.index[i] >= points) continue;
    to[2 * hull.index[i]] += scale * 0.5 * (next.y - previous.y);
    to[2 * hull.index[i] + 1] += scale * 0.5 * (previous.x - next.x);
  }
}

// Adds `scale` times the derivative of the intersection area with respect to the hull's corners.
// Each side contributes through its part within the quadrilateral. A point of that part moves with
// the two ends of the side, in proportion to its position between them. A side that lies on a side
// of the quadrilateral counts half, the mean of moving it either way.
DETOPS_HD void add_intersection_gradient(const Hull& hull, const Quad& q, double scale,
                                         double* to) {
  ConvexPart parts[2];
  const int count = convex_parts(q, parts);
  for (int i = 0; i < hull.count; ++i) {
    const int j = (i + 1) % hull.count;
    const Point a = hull.corners[i], b = hull.corners[j];
    double weight_a = 0, weight_b = 0;
    for (int k = 0; k < count; ++k) {
      double begin = 0, end = 1, weight = parts[k].sign;
      for (int side = 0; side < parts[k].count; ++side) {
        const Point p = parts[k].corners[side], r = parts[k].corners[(side + 1) % parts[k].count];
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
      weight_b += weight * at_b;
      weight_a += weight * (end - begin - at_b);
    }
    const double normal_x = scale * (b.y - a.y), normal_y = scale * (a.x - b.x);
    to[2 * hull.index[i]] += weight_a * normal_x;
    to[2 * hull.index[i] + 1] += weight_a * normal_y;
    to[2 * hull.index[j]] += weight_b * normal_x;
    to[2 * hull.index[j] + 1] += weight_b * normal_y;
  }
}

struct ConvexAreas {
  double inter, union_area, hull_area;  // I, U, C
  Hull hull;                            // C; `index` is below kSetPoints for corners of the set
};

DETOPS_HD ConvexAreas convex_areas(const PointSet& set, const Quad& q) {
  const double quad_area = area(q);
  ConvexAreas areas{};
  if (!(set.area - set.area == 0 && quad_area - quad_area == 0)) {
    areas.inter = areas.union_area = areas.hull_area =
        set.area - set.area + (quad_area - quad_area);
    return areas;
  }
  areas.inter = min(intersection(set.hull, q), min(set.area, quad_area));
  areas.union_area = set.area + quad_area - areas.inter;
  Point points[kHullPoints];
  for (int i = 0; i < set.hull.count; ++i) points[i] = set.hull.corners[i];
  for (int i = 0; i < 4; ++i) points[set.hull.count + i] = q.corners[i];
  areas.hull = convex_hull(points, set.hull.count + 4);
  for (int i = 0; i < areas.hull.count; ++i) {
    const int corner = areas.hull.index[i];
    areas.hull.index[i] = corner < set.hull.count ? set.hull.index[corner] : kSetPoints;
  }
  areas.hull_area = area(areas.hull.corners, areas.hull.count);
  return areas;
}

// Returns the quotient, or 0 if the denominator is 0.
DETOPS_HD double safe_divide(double numerator, double denominator) {
  return denominator == 0 ? 0 : numerator / denominator;
}

DETOPS_HD double convex_giou(const PointSet& set, const Quad& q) {
  const ConvexAreas areas = convex_areas(set, q);
  return safe_divide(areas.inter, areas.union_area) -
         safe_divide(areas.hull_area - areas.union_area, areas.hull_area);
}

// Writes grad times the derivative of convex_giou with respect to the set's 18 coordinates.
DETOPS_HD void convex_giou_gradient(const PointSet& set, const Quad& q, double grad, double* to) {
  const ConvexAreas areas = convex_areas(set, q);
  const double nan_or_zero =
      areas.hull_area - areas.hull_area;  // NaN if a coordinate is not finite
  for (int i = 0; i < 2 * kSetPoints; ++i) to[i] = nan_or_zero;
  if (nan_or_zero != 0 || areas.hull_area == 0 || areas.union_area == 0) return;
  // giou = I / U + U / C - 1, where U is the sum of the areas minus I.
  const double iou = areas.inter / areas.union_area;
  const double union_grad = grad * (1 / areas.hull_area - iou / areas.union_area);
  add_area_gradient(set.hull, union_grad, kSetPoints, to);
  add_intersection_gradient(set.hull, q, grad / areas.union_area - union_grad, to);
  add_area_gradient(areas.hull, -grad * areas.union_area / (areas.hull_area * areas.hull_area),
                    kSetPoints, to);
}

// Finds the rectangle of least area around a point set. One of its sides lies along a side of the
// hull ("Determining the minimum-area encasing rectangle", Freeman and Shapira, 1975). With u the
// direction of a side between 0 and 90 degrees and v perpendicular to it, the corners are those of
// largest u and smallest v, smallest u and v, smallest u and largest v, largest u and v. Among
// rectangles of equal area, which acute triangles have, the first side wins, counted from the
// lowest corner. If a coordinate is not finite, all corners are NaN.
template <typename T>
DETOPS_HD void min_area_polygon(const T* coords, T* corners) {
  const PointSet set = point_set(coords);
  if (!(set.area - set.area == 0)) {
    for (int i = 0; i < 8; ++i) corners[i] = static_cast<T>(set.area - set.area);
    return;
  }
  const Hull& hull = set.hull;
  const Point origin = hull.corners[0];
  Point u{1, 0};
  double low_u = 0, high_u = 0, low_v = 0, high_v = 0, min_area = -1;
  for (int i = 0; hull.count > 1 && i < hull.count; ++i) {
    const Point a = hull.corners[i], b = hull.corners[(i + 1) % hull.count];
    const double side_scale = max(abs(b.x - a.x), abs(b.y - a.y));  // its square may overflow
    const double x = (b.x - a.x) / side_scale, y = (b.y - a.y) / side_scale,
                 length = sqrt(x * x + y * y);
    Point along{x / length, y / length};
    for (int k = 0; k < 3 && !(along.x > 0 && along.y >= 0); ++k) along = {along.y, -along.x};
    double from_u = 0, to_u = 0, from_v = 0, to_v = 0;
    for (int k = 0; k < hull.count; ++k) {
      const double dx = hull.corners[k].x - origin.x, dy = hull.corners[k].y - origin.y;
      const double on_u = dx * along.x + dy * along.y, on_v = dy * along.x - dx * along.y;
      from_u = min(from_u, on_u);
      to_u = max(to_u, on_u);
      from_v = min(from_v, on_v);
      to_v = max(to_v, on_v);
    }
    const double rect_area = (to_u - from_u) * (to_v - from_v);
    if (min_area >= 0 && !(rect_area < min_area * (1 - 1e-12))) continue;
    min_area = rect_area;
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
