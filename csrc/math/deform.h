// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

// A map whose positions are numbered row by row, from `start` on.
struct Level {
  int64_t height, width, start;
};

// Whether the level has positions, all of them within [0, count).
DETOPS_HD bool lies_within(const Level& level, int64_t count) {
  return level.height >= 1 && level.width >= 1 && level.height <= count / level.width &&
         level.start >= 0 && level.start <= count - level.height * level.width;
}

#include "deform.inl"

namespace deform {

// Where samples begin to count; see sample.
template <typename T>
T least_place(bool edge_gradient) {
  return edge_gradient ? T(-1) : std::nextafter(T(-1), T(0));
}

}  // namespace deform

}  // namespace detops::math
