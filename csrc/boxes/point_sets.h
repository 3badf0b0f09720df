// SPDX-License-Identifier: MIT
#pragma once

#include "../math/chamfer_distance.h"
#include "../ops.h"

namespace detops {

// Two sets of points for each of `sets` pairs, in the type that is computed in.
struct PointSets {
  Tensor first, second;  // [sets, n, 2] and [sets, m, 2]
  int64_t sets, n, m;

  PointSets(const Tensor& points1, const Tensor& points2, ScalarType type)
      : first(as_type(points1, type).contiguous()),
        second(as_type(points2, type).contiguous()),
        sets(first.size(0)),
        n(first.size(1)),
        m(second.size(1)) {}
};

// With the gradients of their distances, and where theirs are written, until store() rounds them.
struct PointSetGradients : PointSets {
  Tensor grad_first, grad_second, index_first, index_second, to_first, to_second;

  PointSetGradients(const Tensor& grad1, const Tensor& grad2, const Tensor& points1,
                    const Tensor& points2, const Tensor& idx1, const Tensor& idx2,
                    const Tensor& to_points1, const Tensor& to_points2)
      : PointSets(points1, points2, compute_type(points1, points2)),
        grad_first(as_type(grad1, type()).contiguous()),
        grad_second(as_type(grad2, type()).contiguous()),
        index_first(idx1.contiguous()),
        index_second(idx2.contiguous()),
        to_first(as_type(to_points1, type())),
        to_second(as_type(to_points2, type())) {}

  ScalarType type() const { return first.scalar_type(); }

  void store(Tensor& to_points1, Tensor& to_points2) const {
    to_points1 = as_type(to_first, to_points1.scalar_type());
    to_points2 = as_type(to_second, to_points2.scalar_type());
  }
};

}  // namespace detops
