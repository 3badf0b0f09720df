// SPDX-License-Identifier: MIT
#pragma once

#include "../ops.h"

namespace detops {

// Two lists of boxes, in the type that is computed in.
struct BoxLists {
  Tensor first, second;

  BoxLists(const Tensor& boxes1, const Tensor& boxes2, ScalarType type)
      : first(as_type(boxes1, type).contiguous()), second(as_type(boxes2, type).contiguous()) {}

  ScalarType type() const { return first.scalar_type(); }
};

// Lists with the gradient of what came of them, and where theirs are written, until store() rounds
// them.
template <typename Lists>
struct ListGradients : Lists {
  Tensor grad, to_first, to_second;

  ListGradients(const Tensor& of_values, const Tensor& boxes1, const Tensor& boxes2,
                const Tensor& grad1, const Tensor& grad2)
      : Lists(boxes1, boxes2, compute_type(boxes1, boxes2)),
        grad(as_type(of_values, this->type()).contiguous()),
        to_first(as_type(grad1, this->type())),
        to_second(as_type(grad2, this->type())) {}

  void store(Tensor& grad1, Tensor& grad2) const {
    grad1 = as_type(to_first, grad1.scalar_type());
    grad2 = as_type(to_second, grad2.scalar_type());
  }
};

using BoxListGradients = ListGradients<BoxLists>;

}  // namespace detops
