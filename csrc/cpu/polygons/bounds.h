// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "../../math/polygon.h"
#include "../common/box_columns.h"
#include "../common/host.h"

namespace detops::cpu {

// Returns the axis-aligned bounds of some points.
DETOPS_SHARED_INLINE math::Box<double> bounding_box(const math::Point* points, int count) {
  math::Box<double> box{points[0].x, points[0].y, points[0].x, points[0].y};
  for (int i = 1; i < count; ++i) {
    box.x1 = math::min(box.x1, points[i].x);
    box.y1 = math::min(box.y1, points[i].y);
    box.x2 = math::max(box.x2, points[i].x);
    box.y2 = math::max(box.y2, points[i].y);
  }
  return box;
}

template <typename Shape>
struct Bounded {
  Shape shape;
  math::Box<double> bounds;
};

template <typename T>
Bounded<math::Quad> bounded_quad(const T* corners) {
  const math::Quad quad = math::quad(corners);
  return {quad, bounding_box(quad.corners, 4)};
}

// Returns overlap(a, b), or 0 if it is undefined. Shapes whose bounds are disjoint or touch have no
// area in common.
template <typename T, typename A, typename B, typename Overlap>
T bounded_overlap(const Bounded<A>& a, const Bounded<B>& b, const Overlap& overlap) {
  const auto &p = a.bounds, &q = b.bounds;
  const bool intersects = p.x1 < q.x2 && q.x1 < p.x2 && p.y1 < q.y2 && q.y1 < p.y2;
  const double value = intersects ? overlap(a.shape, b.shape) : 0;
  return value == value ? static_cast<T>(value) : T(0);
}

constexpr int64_t kPairsPerThread = 1 << 10;

// Writes the overlap of shape_at(i), a bounded shape, with quadrilateral j to output[i, j].
template <typename T, typename ShapeAt, typename Overlap>
void overlap_with_quads(const T* quads, Tensor& output, const ShapeAt& shape_at,
                        const Overlap& overlap) {
  const int64_t n = output.size(0), m = output.size(1);
  T* out = output.mutable_data_ptr<T>();
  Buffer<Bounded<math::Quad>> columns(m);
  for (int64_t j = 0; j < m; ++j) columns[j] = bounded_quad(quads + 8 * j);
  parallel_each(n, grain_for(kPairsPerThread, m), [&](int64_t i) {
    const auto row = shape_at(i);
    for (int64_t j = 0; j < m; ++j) {
      out[i * m + j] = bounded_overlap<T>(row, columns[j], overlap);
    }
  });
}

}  // namespace detops::cpu
