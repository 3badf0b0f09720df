// SPDX-License-Identifier: MIT
#pragma once

#include "bilinear.h"

namespace detops::math {

// A mask of cells stretched over a box, seen through the centres of the image's pixels: bilinear
// between the centres of cells, and zero beyond the mask. Separable: one axis at a time, columns
// first, so that every backend rounds alike and sets the same pixels.

// The two cells around the centre of a pixel, of a mask with a border of zeros: cell i is number
// i + 1. False where both are border, and for a box that is empty, inverted, NaN or of infinite
// extent.
template <typename T>
DETOPS_HD bool mask_taps(T first, T last, int64_t cells, int64_t pixel, Taps<T>& taps) {
  const T extent = last - first;
  if (!(extent > 0 && extent - extent == 0)) return false;
  const T x = (T(pixel) + T(0.5) - first) / extent * T(cells) + T(0.5);
  if (!(x > 0 && x < T(cells + 1))) return false;
  const int64_t low = static_cast<int64_t>(x);
  if (low > cells) return false;  // T may have no number as large as cells + 1
  const T fraction = x - T(low);
  taps = {low, low + 1, T(1) - fraction, fraction};
  return true;
}

// What a soft mask stores: 0 to 255, rounded down; NaN is 0.
template <typename T>
DETOPS_HD uint8_t soft_mask_value(T value) {
  const T scaled = value * T(255);
  return scaled > 0 ? static_cast<uint8_t>(scaled < T(255) ? scaled : T(255)) : uint8_t(0);
}

// The overlap of two masks from numbers of pixels, rounded to float32: over their union, or over
// the first mask. 0 where that is empty.
DETOPS_HD float mask_overlap(int64_t meet, int64_t area1, int64_t area2, bool of_first) {
  const int64_t all = of_first ? area1 : area1 + area2 - meet;
  if (all <= 0) return 0;
  return static_cast<float>(static_cast<double>(meet) / static_cast<double>(all));
}

}  // namespace detops::math
