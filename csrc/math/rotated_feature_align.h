// SPDX-License-Identifier: MIT
#pragma once

#include "bilinear.h"
#include "rotated_box.h"

// "R3Det" (Yang et al., 2021), section 3.3 (feature refinement module): the features at the places
// of a box are added to those of the pixel that the box was found at.
namespace detops::math {

constexpr int64_t kMostBoxPoints = 5;

// Calls visit(y, x) for the centre of a box and, with 5 points, its corners, in pixels of the map.
// `box` is (cx, cy, w, h, angle) in image pixels and degrees, counter-clockwise where the y axis
// points down.
template <typename T, typename Visit>
DETOPS_HD void visit_box_points(const T* box, T spatial_scale, int64_t points, Visit&& visit) {
  const T x = box[0] * spatial_scale, y = box[1] * spatial_scale;
  visit(y, x);
  if (points == 1) return;
  const T half_w = box[2] * spatial_scale / 2, half_h = box[3] * spatial_scale / 2;
  double sine, cosine;
  sin_cos_of_degrees(double(box[4]), sine, cosine);
  const T along_x = T(cosine) * half_w, along_y = -T(sine) * half_w;
  const T down_x = T(sine) * half_h, down_y = T(cosine) * half_h;
  visit(y + along_y + down_y, x + along_x + down_x);
  visit(y - along_y + down_y, x - along_x + down_x);
  visit(y - along_y - down_y, x - along_x - down_x);
  visit(y + along_y - down_y, x + along_x - down_x);
}

}  // namespace detops::math
