// SPDX-License-Identifier: MIT
#pragma once

#include "../math/chamfer_distance.h"
#include "box_lists.h"

namespace detops {

// Two sets of points for each of `sets` pairs: [sets, n, 2] and [sets, m, 2].
struct PointSets : BoxLists {
  int64_t sets, n, m;

  PointSets(const Tensor& points1, const Tensor& points2, ScalarType type)
      : BoxLists(points1, points2, type),
        sets(first.size(0)),
        n(first.size(1)),
        m(second.size(1)) {}
};

// `grad` is that of the first set's distances.
struct PointSetGradients : ListGradients<PointSets> {
  Tensor grad_second, index_first, index_second;

  PointSetGradients(const Tensor& grad1, const Tensor& grad2, const Tensor& points1,
                    const Tensor& points2, const Tensor& idx1, const Tensor& idx2,
                    const Tensor& to_points1, const Tensor& to_points2)
      : ListGradients(grad1, points1, points2, to_points1, to_points2),
        grad_second(as_type(grad2, type()).contiguous()),
        index_first(idx1.contiguous()),
        index_second(idx2.contiguous()) {}
};

}  // namespace detops
