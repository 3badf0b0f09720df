// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

// "Mask R-CNN" (He et al., 2017), section 5: a heatmap is enlarged to the pixels of its box, and
// the largest pixel is the keypoint. Columns are enlarged first and all sums have a fixed order, so
// that every backend selects the same pixel.
namespace detops::math {

// The most pixels per cell and axis that are searched: a heatmap has no finer detail, and the limit
// bounds the search.
constexpr int64_t kMaxPixelsPerCell = 16;

// One axis of a box: its length, at least one pixel, and the number of pixels that are searched.
template <typename T>
struct HeatmapAxis {
  T first, length;
  int64_t pixels, cells;

  DETOPS_HD HeatmapAxis(T first, T last, int64_t cells)
      : first(first), length(last - first), pixels(1), cells(cells) {
    if (length < 1) length = 1;
    const int64_t max_pixels = kMaxPixelsPerCell * cells;
    // A NaN length gets one pixel.
    if (length > 1)
      pixels = length < T(max_pixels) ? static_cast<int64_t>(ceil(length)) : max_pixels;
  }

  // Returns the position of a pixel's centre.
  DETOPS_HD T at(int64_t pixel) const { return first + (T(pixel) + T(0.5)) * (length / T(pixels)); }
};

// The four cells around a pixel's centre. Beyond the border, the border value is repeated.
template <typename T>
struct CubicTaps {
  int64_t cell[4];
  T weight[4];

  // "Cubic convolution interpolation for digital image processing" (Keys, 1981), equation 15, with
  // the parameter a = -0.75 of PyTorch and OpenCV.
  DETOPS_HD CubicTaps(const HeatmapAxis<T>& axis, int64_t pixel) {
    const T a = T(-0.75);
    const T x = (T(pixel) + T(0.5)) * (T(axis.cells) / T(axis.pixels)) - T(0.5);
    const T low = floor(x), t = x - low;
    const auto near = [&](T d) { return ((a + T(2)) * d - (a + T(3))) * d * d + T(1); };
    const auto far = [&](T d) { return ((d - T(5)) * d + T(8)) * d * a - T(4) * a; };
    weight[0] = far(t + T(1));
    weight[1] = near(t);
    weight[2] = near(T(1) - t);
    weight[3] = far(T(2) - t);
    for (int i = 0; i < 4; ++i) {
      cell[i] = max<int64_t>(0, min<int64_t>(static_cast<int64_t>(low) + i - 1, axis.cells - 1));
    }
  }
};

template <typename T>
DETOPS_HD T weighted(T a, T b, T c, T d, const T* weight) {
  return ((a * weight[0] + b * weight[1]) + c * weight[2]) + d * weight[3];
}

// A pixel and its value. The first of equal values wins, and NaN is larger than any number.
template <typename T>
struct Peak {
  T value;
  int64_t pixel;

  DETOPS_HD bool below(const Peak& o) const {
    if (value != value || o.value != o.value) {
      return o.value != o.value && (value == value || o.pixel < pixel);
    }
    return value < o.value || (value == o.value && o.pixel < pixel);
  }

  DETOPS_HD void add(const Peak& o) {
    if (below(o)) *this = o;
  }
};

}  // namespace detops::math
