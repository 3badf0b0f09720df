// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

template <typename T>
struct Point {
  T x, y;
};

// "A Point Set Generation Network for 3D Object Reconstruction from a Single Image" (Fan et al.,
// 2017), section 4.2: the squared distance from each point to the nearest point of the other set.
// The caller sums them. A NaN or infinite distance is ignored.
template <typename T>
DETOPS_HD T square_distance(const Point<T>& a, const Point<T>& b) {
  const T dx = b.x - a.x, dy = b.y - a.y;
  return dx * dx + dy * dy;
}

// Adds grad * d |a - b|^2 / da to `to`.
template <typename T>
DETOPS_HD void square_distance_gradient(const Point<T>& a, const Point<T>& b, T grad,
                                        Point<T>& to) {
  to.x += (grad + grad) * (a.x - b.x);
  to.y += (grad + grad) * (a.y - b.y);
}

}  // namespace detops::math
