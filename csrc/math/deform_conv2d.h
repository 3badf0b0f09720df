// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

#include "deform_conv2d.inl"

namespace deform {

// Where samples begin to count; see sample.
template <typename T>
T least_place(bool edge_gradient) {
  return edge_gradient ? T(-1) : std::nextafter(T(-1), T(0));
}

}  // namespace deform

}  // namespace detops::math
