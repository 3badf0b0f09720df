// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

// The two neighbours of a coordinate along one axis, and their weights.
template <typename T>
struct Taps {
  int64_t low, high;
  T weight_low, weight_high;
};

// False where the sample does not count: outside [-1, size], or NaN (hence the negated range test).
// Between -1 and 0, and between size - 1 and size, the border value is taken.
template <typename T>
DETOPS_HD bool bilinear_taps(T x, int64_t size, Taps<T>& taps) {
  if (!(x >= T(-1) && x <= T(size))) return false;
  if (x < 0) x = 0;
  const int64_t low = static_cast<int64_t>(x);
  if (low >= size - 1) {
    taps = {size - 1, size - 1, T(1), T(0)};
  } else {
    const T fraction = x - T(low);
    taps = {low, low + 1, T(1) - fraction, fraction};
  }
  return true;
}

}  // namespace detops::math
