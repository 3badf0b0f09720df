// SPDX-License-Identifier: MIT
#pragma once

#include "bilinear.h"

namespace detops::math {

// A mask of cells is stretched over a box and sampled at the centres of the image's pixels:
// bilinear between the centres of cells, and zero beyond the mask. The axes are interpolated one at
// a time, columns first, so that every backend rounds alike and sets the same pixels.

// Finds the two cells around the centre of a pixel. The mask has a border of zeros, so cell i has
// index i + 1. Returns false if both cells are border, or the box is empty, inverted, NaN or of
// infinite extent.
template <typename T>
DETOPS_HD bool mask_taps(T first, T last, int64_t cells, int64_t pixel, Taps<T>& taps) {
  const T extent = last - first;
  if (!(extent > 0 && extent - extent == 0)) return false;
  const T x = (T(pixel) + T(0.5) - first) / extent * T(cells) + T(0.5);
  if (!(x > 0 && x < T(cells + 1))) return false;
  const int64_t low = static_cast<int64_t>(x);
  if (low > cells) return false;  // T may not represent cells + 1
  const T fraction = x - T(low);
  taps = {low, low + 1, T(1) - fraction, fraction};
  return true;
}

// Returns the value that a soft mask stores: 0 to 255, rounded down; 0 for NaN.
template <typename T>
DETOPS_HD uint8_t soft_mask_value(T value) {
  const T scaled = value * T(255);
  return scaled > 0 ? static_cast<uint8_t>(scaled < T(255) ? scaled : T(255)) : uint8_t(0);
}

// Returns the overlap of two masks from their pixel counts, rounded to float32. The denominator is
// their union or the first mask; if that is empty, the overlap is 0.
DETOPS_HD float mask_overlap(int64_t inter, int64_t area1, int64_t area2, bool of_first) {
  const int64_t denominator = of_first ? area1 : area1 + area2 - inter;
  if (denominator <= 0) return 0;
  return static_cast<float>(static_cast<double>(inter) / static_cast<double>(denominator));
}

}  // namespace detops::math
