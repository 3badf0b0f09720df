// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

// A feature map whose positions are numbered row by row, starting at `start`.
struct Level {
  int64_t height, width, start;
};

// Returns whether the level has positions and all of them lie within [0, count).
DETOPS_HD bool is_within(const Level& level, int64_t count) {
  return level.height >= 1 && level.width >= 1 && level.height <= count / level.width &&
         level.start >= 0 && level.start <= count - level.height * level.width;
}

#include "deform.inl"

namespace deform {

// The least coordinate at which a sample contributes; see `sample`.
template <typename T>
T min_coordinate(bool edge_gradient) {
  return edge_gradient ? T(-1) : std::nextafter(T(-1), T(0));
}

}  // namespace deform

}  // namespace detops::math
