// SPDX-License-Identifier: MIT
#pragma once

#include "convex_iou.h"

namespace detops::math {

// The rectangle of least area around a set of points, one of whose sides lies along a side of the
// hull ("Determining the minimum-area encasing rectangle", Freeman and Shapira, 1975). With u the
// direction of a side between 0 and 90 degrees and v that across it, the corners are those of
// largest u and smallest v, smallest u and v, smallest u and largest v, largest u and v. Of equal
// rectangles, as acute triangles have, it is that of the first side, from the lowest corner on. A
// coordinate that is not finite makes NaN.
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
    const double most = max(abs(b.x - a.x), abs(b.y - a.y));  // whose square may not be a number
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
