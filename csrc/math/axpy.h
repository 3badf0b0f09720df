// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

// z = alpha x + y
template <typename T>
DETOPS_HD T axpy(T alpha, T x, T y) {
  return alpha * x + y;
}

// dz/dx = alpha, dz/dy = 1
template <typename T>
DETOPS_HD void axpy_gradient(T alpha, T grad, T& grad_x, T& grad_y) {
  grad_x = alpha * grad;
  grad_y = grad;
}

}  // namespace detops::math
