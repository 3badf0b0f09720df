// SPDX-License-Identifier: MIT
#pragma once

#include "../ops.h"

namespace detops {

// Two lists of boxes, in the type that is computed in.
struct BoxLists {
  Tensor first, second;

  BoxLists(const Tensor& boxes1, const Tensor& boxes2, ScalarType type)
      : first(as_type(boxes1, type).contiguous()), second(as_type(boxes2, type).contiguous()) {}
};

// With the gradient of what came of them, and where theirs are written, until store() rounds them.
struct BoxListGradients : BoxLists {
  Tensor grad, to_first, to_second;

  BoxListGradients(const Tensor& of_values, const Tensor& boxes1, const Tensor& boxes2,
                   const Tensor& grad1, const Tensor& grad2)
      : BoxLists(boxes1, boxes2, compute_type(boxes1, boxes2)),
        grad(as_type(of_values, type()).contiguous()),
        to_first(as_type(grad1, type())),
        to_second(as_type(grad2, type())) {}

  ScalarType type() const { return first.scalar_type(); }

  void store(Tensor& grad1, Tensor& grad2) const {
    grad1 = as_type(to_first, grad1.scalar_type());
    grad2 = as_type(to_second, grad2.scalar_type());
  }
};

}  // namespace detops
