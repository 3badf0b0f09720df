// SPDX-License-Identifier: MIT
#pragma once

#include "../ops.h"

namespace detops {

// Two lists of boxes in the compute type.
struct BoxLists {
  Tensor first, second;

  BoxLists(const Tensor& boxes1, const Tensor& boxes2, ScalarType type)
      : first(boxes1.to(type).contiguous()), second(boxes2.to(type).contiguous()) {}

  ScalarType type() const { return first.scalar_type(); }
};

// The same, with the gradient of the result.
struct BoxListGradients : BoxLists {
  Tensor grad;

  BoxListGradients(const Tensor& grad_output, const Tensor& boxes1, const Tensor& boxes2)
      : BoxLists(boxes1, boxes2, compute_type(boxes1, boxes2)),
        grad(grad_output.to(type()).contiguous()) {}
};

// Two sets of points for each of `sets` pairs: [sets, n, 2] and [sets, m, 2].
struct PointSets : BoxLists {
  int64_t sets, n, m;

  PointSets(const Tensor& points1, const Tensor& points2, ScalarType type)
      : BoxLists(points1, points2, type),
        sets(first.size(0)),
        n(first.size(1)),
        m(second.size(1)) {}
};

struct PointSetGradients : PointSets {
  Tensor grad_first, grad_second, index_first, index_second;

  PointSetGradients(const Tensor& grad1, const Tensor& grad2, const Tensor& points1,
                    const Tensor& points2, const Tensor& idx1, const Tensor& idx2)
      : PointSets(points1, points2, compute_type(points1, points2)),
        grad_first(grad1.to(type()).contiguous()),
        grad_second(grad2.to(type()).contiguous()),
        index_first(idx1.contiguous()),
        index_second(idx2.contiguous()) {}
};

}  // namespace detops
