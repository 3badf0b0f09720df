// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/polygon.h"
#include "../common/buffer.h"
#include "../nms/nms_boxes.h"

namespace detops::cpu {

// The upright box around some points.
DETOPS_SHARED_INLINE math::Box<double> bounds_of(const math::Point* points, int count) {
  math::Box<double> box{points[0].x, points[0].y, points[0].x, points[0].y};
  for (int i = 1; i < count; ++i) {
    box.x1 = math::min(box.x1, points[i].x);
    box.y1 = math::min(box.y1, points[i].y);
    box.x2 = math::max(box.x2, points[i].x);
    box.y2 = math::max(box.y2, points[i].y);
  }
  return box;
}

// What lies in boxes that do not, or only touch, has no area in common.
inline bool can_meet(const math::Box<double>& a, const math::Box<double>& b) {
  return a.x1 < b.x2 && b.x1 < a.x2 && a.y1 < b.y2 && b.y1 < a.y2;
}

struct BoundedQuad {
  math::Quad quad;
  math::Box<double> bounds;
};

template <typename T>
BoundedQuad bounded_quad(const T* corners) {
  const math::Quad quad = math::quad(corners);
  return {quad, bounds_of(quad.at, 4)};
}

template <typename T>
Buffer<BoundedQuad> bounded_quads(const T* corners, int64_t count) {
  Buffer<BoundedQuad> quads(count);
  for (int64_t i = 0; i < count; ++i) quads[i] = bounded_quad(corners + 8 * i);
  return quads;
}

}  // namespace detops::cpu
