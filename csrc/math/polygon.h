// SPDX-License-Identifier: MIT
#pragma once

#include "overlap.h"

// Polygons given by their corners, in double for every dtype of the tensors. "Left" and
// "counter-clockwise" assume an x axis to the right and a y axis upwards.
namespace detops::math {

struct Point {
  double x, y;
};

// Twice the area of the triangle, positive if b is on the left of the line from o to a.
DETOPS_HD double cross(Point o, Point a, Point b) {
  return (a.x - o.x) * (b.y - o.y) - (b.x - o.x) * (a.y - o.y);
}

// Computed relative to the first corner, so that it is as exact far from the origin as near it.
DETOPS_HD double area(const Point* corners, int count) {
  double twice = 0;
  for (int i = 2; i < count; ++i) twice += cross(corners[0], corners[i - 1], corners[i]);
  return 0.5 * twice;
}

// Returns 0, or NaN if a coordinate is not finite.
DETOPS_HD double nan_if_not_finite(const Point* points, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += (points[i].x - points[i].x) + (points[i].y - points[i].y);
  return sum;
}

constexpr int kSetPoints = 9;                // points of a point set
constexpr int kHullPoints = kSetPoints + 4;  // at most: a point set and a quadrilateral

// The corners of a convex hull, counter-clockwise from the lowest (the leftmost of these), and the
// index of the point at each corner: the first of equal points.
struct Hull {
  Point corners[kHullPoints];
  int index[kHullPoints];
  int count;
};

// "Another efficient algorithm for convex hulls in two dimensions" (Andrew, 1979). Points on a side
// between two corners are dropped. All points must be finite.
DETOPS_HD Hull convex_hull(const Point* points, int count) {
  int order[kHullPoints], distinct = 0;
  for (int i = 0; i < count; ++i) {
    const Point p = points[i];
    int k = distinct;
    bool equal = false;
    for (; k > 0; --k) {
      const Point q = points[order[k - 1]];
      equal = q.x == p.x && q.y == p.y;
      if (equal || q.y < p.y || (q.y == p.y && q.x < p.x)) break;
    }
    if (equal) continue;
    for (int j = distinct; j > k; --j) order[j] = order[j - 1];
    order[k] = i;
    ++distinct;
  }
  // Up along the right side, and down along the left one.
  int chain[2 * kHullPoints], length = 0;
  for (int pass = 0; pass < 2; ++pass) {
    const int begin = length;
    for (int i = 0; i < distinct; ++i) {
      const int next = order[pass == 0 ? i : distinct - 1 - i];
      while (length - begin >= 2 &&
             !(cross(points[chain[length - 2]], points[chain[length - 1]], points[next]) > 0)) {
        --length;
      }
      chain[length++] = next;
    }
    if (distinct > 1) --length;  // where the other pass begins
  }
  Hull hull{};
  hull.count = distinct > 1 ? length : distinct;
  for (int i = 0; i < hull.count; ++i) {
    hull.index[i] = chain[i];
    hull.corners[i] = points[chain[i]];
  }
  return hull;
}

// A quadrilateral, counter-clockwise. It may be concave. If its sides cross, its triangles count
// with the sign of their orientation.
struct Quad {
  Point corners[4];
};

template <typename T>
DETOPS_HD Quad quad(const T* corners) {
  Quad q;
  for (int i = 0; i < 4; ++i) q.corners[i] = {double(corners[2 * i]), double(corners[2 * i + 1])};
  if (area(q.corners, 4) < 0) {
    const Point second = q.corners[1];
    q.corners[1] = q.corners[3];
    q.corners[3] = second;
  }
  return q;
}

DETOPS_HD double area(const Quad& q) {
  return area(q.corners, 4) + nan_if_not_finite(q.corners, 4);
}

// A convex polygon, counter-clockwise. Its area is multiplied by `sign`.
struct ConvexPart {
  Point corners[4];
  int count;
  double sign;
};

// Splits a quadrilateral into signed convex parts: the quadrilateral itself, or the triangles on
// both sides of a diagonal, one of which may be negative. Returns the number of parts.
DETOPS_HD int convex_parts(const Quad& q, ConvexPart* parts) {
  bool convex = true;
  for (int i = 0; i < 4; ++i) {
    convex = convex && cross(q.corners[i], q.corners[(i + 1) % 4], q.corners[(i + 2) % 4]) >= 0;
  }
  if (convex) {
    parts[0] = {{q.corners[0], q.corners[1], q.corners[2], q.corners[3]}, 4, 1};
    return 1;
  }
  for (int k = 0; k < 2; ++k) {
    const bool left = cross(q.corners[0], q.corners[1 + k], q.corners[2 + k]) >= 0;
    parts[k] = {
        {q.corners[0], q.corners[left ? 1 + k : 2 + k], q.corners[left ? 2 + k : 1 + k], {}},
        3,
        left ? 1.0 : -1.0};
  }
  return 2;
}

// Area of the intersection of two convex polygons: one is clipped by the sides of the other
// ("Reentrant polygon clipping", Sutherland and Hodgman, 1974).
DETOPS_HD double convex_intersection(const Point* corners, int count, const ConvexPart& clip) {
  constexpr int kMaxCorners = kSetPoints + 2 * 4;
  Point buffers[2][kMaxCorners];
  for (int i = 0; i < count; ++i) buffers[0][i] = corners[i];
  int current = 0;
  for (int side = 0; side < clip.count && count > 0; ++side, current = 1 - current) {
    const Point p = clip.corners[side], q = clip.corners[(side + 1) % clip.count];
    const Point* from = buffers[current];
    Point* to = buffers[1 - current];
    int length = 0;
    Point last = from[count - 1];
    double last_left = cross(p, q, last);
    // Only rounding errors could produce more than kMaxCorners.
    for (int i = 0; i < count && length + 2 <= kMaxCorners; ++i) {
      const Point next = from[i];
      const double left = cross(p, q, next);
      if ((last_left > 0 && left < 0) || (last_left < 0 && left > 0)) {
        const double t = last_left / (last_left - left);
        to[length++] = {last.x + t * (next.x - last.x), last.y + t * (next.y - last.y)};
      }
      if (left >= 0) to[length++] = next;
      last = next;
      last_left = left;
    }
    count = length;
  }
  return max(area(buffers[current], count), 0.0);
}

DETOPS_HD double intersection(const Hull& hull, const Quad& q) {
  ConvexPart parts[2];
  const int count = convex_parts(q, parts);
  double inter = 0;
  for (int k = 0; k < count; ++k) {
    inter += parts[k].sign * convex_intersection(hull.corners, hull.count, parts[k]);
  }
  return max(inter, 0.0);
}

// Returns whether `a` precedes `b` in a fixed order of all quadrilaterals.
DETOPS_HD bool precedes(const Quad& a, const Quad& b) {
  for (int i = 0; i < 4; ++i) {
    if (a.corners[i].x != b.corners[i].x) return a.corners[i].x > b.corners[i].x;
    if (a.corners[i].y != b.corners[i].y) return a.corners[i].y > b.corners[i].y;
  }
  return false;
}

// The clipping quadrilateral is chosen regardless of the order of the arguments, so the result does
// not depend on that order.
DETOPS_HD double intersection(const Quad& first, const Quad& second) {
  const bool swap = precedes(second, first);
  ConvexPart parts_a[2], parts_b[2];
  const int n = convex_parts(swap ? second : first, parts_a);
  const int m = convex_parts(swap ? first : second, parts_b);
  double inter = 0;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < m; ++j) {
      const double sign = parts_a[i].sign * parts_b[j].sign;
      inter += sign * convex_intersection(parts_a[i].corners, parts_a[i].count, parts_b[j]);
    }
  }
  return max(inter, 0.0);
}

// At most 1; NaN if the ratio has no value.
DETOPS_HD double iou(const Quad& a, const Quad& b, Base base = Base::kUnion) {
  const double area_a = area(a), area_b = area(b);
  const double inter = min(intersection(a, b), min(area_a, area_b)) + (area_b - area_b);
  return inter / (base == Base::kUnion ? area_a + area_b - inter : area_a);
}

// The only test that decides suppression: the IoU, rounded to T, must be strictly above the
// threshold. An IoU without a value does not suppress.
template <typename T>
DETOPS_HD bool suppresses(const Quad& a, const Quad& b, double threshold) {
  return static_cast<double>(static_cast<T>(iou(a, b))) > threshold;
}

// Point-in-quadrilateral test by the even-odd rule: if the sides cross, both triangles are inside.
// A point on a side is outside, and so is a point with a NaN. A quadrilateral with a coordinate
// that is not finite contains no points.

#include "points_in_polygons.inl"

// Writes the coordinates of the four corners, or NaN for all if one of them is not finite.
template <typename T>
DETOPS_HD void finite_corners(const T* coords, double* x, double* y) {
  double nan_or_zero = 0;
  for (int i = 0; i < 8; ++i) nan_or_zero += double(coords[i]) - double(coords[i]);
  for (int i = 0; i < 4; ++i) {
    x[i] = double(coords[2 * i]) + nan_or_zero;
    y[i] = double(coords[2 * i + 1]) + nan_or_zero;
  }
}

}  // namespace detops::math
