// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

// A bilinear sample lies in the cell between four pixels, in the order upper left, upper right,
// lower left, lower right. A cell has the number of its upper left pixel; samples that lie up to a
// pixel above or left of a map are moved into the first row or column of cells, their shares with
// them, so that there are as many cells as pixels.

// From the pixels' numbers, which are -1 off the map; -1 where all are.
DETOPS_HD int cell_of(const int* pixel) {
  for (int i = 0; i < 4; ++i) {
    if (pixel[i] >= 0) return pixel[i];
  }
  return -1;
}

template <typename T>
DETOPS_HD void move_into_map(int& y, int& x, T* share) {
  if (y < 0) {
    y = 0;
    for (int i = 0; i < 2; ++i) share[i] = share[i + 2], share[i + 2] = T(0);
  }
  if (x < 0) {
    x = 0;
    for (int i = 0; i < 4; i += 2) share[i] = share[i + 1], share[i + 1] = T(0);
  }
}

}  // namespace detops::math
