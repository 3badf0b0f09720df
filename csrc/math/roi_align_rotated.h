// SPDX-License-Identifier: MIT
#pragma once

#include "roi.h"

// "Arbitrary-Oriented Scene Text Detection via Rotation Proposals" (Ma et al., 2018) pools rotated
// boxes. With the samples of RoIAlign, a bin's value is the mean of a regular grid that is rotated
// about the box's centre. Each axis of that grid is a RoIAxis in coordinates of the box.
namespace detops::math {

template <typename T>
struct RotatedRoI {
  RoIAxis<T> rows, cols;
  T x, y;  // centre, in pixels of the feature map
  T cos, sin;
};

// Computes sine and cosine of an angle in degrees. Quarter turns are exact, so that rounding never
// moves a sample on the edge of the feature map beyond it.
template <typename T>
DETOPS_HD void sine_cosine(T angle, T& sine, T& cosine) {
  constexpr double kRadiansPerDegree = 3.14159265358979323846 / 180;
  int quarters = 0;
  const T rest = T(double(remquo(angle, T(90), &quarters)) * kRadiansPerDegree);
  const T s = sin(rest), c = cos(rest);
  const bool odd = quarters & 1;
  sine = odd ? c : s;
  cosine = odd ? -s : c;
  if (quarters & 2) {
    sine = -sine;
    cosine = -cosine;
  }
}

// `box` is (cx, cy, w, h, angle) in image pixels and degrees, counter-clockwise where the y axis
// points down. Pixel centres are aligned: half a pixel is subtracted from the centre.
template <typename T>
DETOPS_HD RotatedRoI<T> rotated_roi(const T* box, T spatial_scale, int64_t pooled_height,
                                    int64_t pooled_width, int64_t sampling_ratio) {
  const T width = box[2] * spatial_scale, height = box[3] * spatial_scale;
  T sine, cosine;
  sine_cosine(box[4], sine, cosine);
  return {roi_axis(-height / 2, height, pooled_height, sampling_ratio),
          roi_axis(-width / 2, width, pooled_width, sampling_ratio),
          box[0] * spatial_scale - T(0.5),
          box[1] * spatial_scale - T(0.5),
          cosine,
          sine};
}

// Returns a rectangle that contains all samples of the RoI.
template <typename T>
DETOPS_HD Rectangle bounds(const RotatedRoI<T>& roi) {
  const double x = roi.x, y = roi.y, sine = abs(roi.sin), cosine = abs(roi.cos);
  const double half_w = abs(roi.cols.start), half_h = abs(roi.rows.start);
  const double slack = 1e-5 * (abs(x) + abs(y) + half_w + half_h);
  const double half_x = half_w * cosine + half_h * sine + slack;
  const double half_y = half_w * sine + half_h * cosine + slack;
  return {y - half_y, y + half_y, x - half_x, x + half_x};
}

// Calls visit(y, x) for the samples of bin (ph, pw) that lie in `reach`, and possibly for others.
// The cost is O(area of `reach`) even if an adaptive RoI is 1e7 pixels wide.
template <typename T, typename Visit>
DETOPS_HD void visit_samples(const RotatedRoI<T>& roi, int64_t ph, int64_t pw,
                             const Rectangle& reach, Visit&& visit) {
  const RoIAxis<T>&rows = roi.rows, &cols = roi.cols;
  const T top = rows.start + T(ph) * rows.bin, left = cols.start + T(pw) * cols.bin;
  const double sine = roi.sin, cosine = roi.cos;
  double step = 0;
  int64_t row = 0, last_row = static_cast<int64_t>(rows.count);
  int64_t first_col = 0, last_col = static_cast<int64_t>(cols.count);
  const bool clip = last_row > 16 || last_col > 16;
  if (clip) {
    step = double(cols.bin) / double(cols.count);
    // The rectangle's extent along the axes of the box.
    const double half_x = (reach.right - reach.left) / 2, half_y = (reach.bottom - reach.top) / 2;
    const double x = reach.left + half_x - roi.x, y = reach.top + half_y - roi.y;
    const double across = x * cosine - y * sine, down = x * sine + y * cosine;
    const double half_across = half_x * abs(cosine) + half_y * abs(sine);
    const double half_down = half_x * abs(sine) + half_y * abs(cosine);
    clip_samples(top, double(rows.bin) / double(rows.count), down - half_down, down + half_down,
                 row, last_row);
    clip_samples(left, step, across - half_across, across + half_across, first_col, last_col);
  }
  for (; row < last_row; ++row) {
    const T down = top + (T(row) + T(0.5)) * rows.bin / rows.count;
    const T x0 = down * roi.sin + roi.x, y0 = down * roi.cos + roi.y;
    int64_t col = first_col, last = last_col;
    if (clip) {
      clip_samples(x0 + left * cosine, step * cosine, reach.left, reach.right, col, last);
      clip_samples(y0 - left * sine, -step * sine, reach.top, reach.bottom, col, last);
    }
    for (; col < last; ++col) {
      const T across = left + (T(col) + T(0.5)) * cols.bin / cols.count;
      visit(y0 - across * roi.sin, x0 + across * roi.cos);
    }
  }
}

// "ReDet" (Han et al., 2021), section 3.3 (RiRoI Align): a rotated RoI is pooled, and then its
// channels, one for each of several orientations, are cyclically shifted by its angle. Orientation
// o of the result is `first_weight` times pooled orientation o + first plus `second_weight` times
// pooled orientation o + second, cyclically. Both `first` and `second` are in [0, orientations).
template <typename T>
struct OrientationSwitch {
  int64_t first, second;
  T first_weight, second_weight;

  // Returns the transpose, which maps a gradient of the result to one of the pooled channels.
  DETOPS_HD OrientationSwitch transposed(int64_t orientations) const {
    return {(orientations - first) % orientations, (orientations - second) % orientations,
            first_weight, second_weight};
  }
};

// `angle` is in degrees. A RoI whose angle is not finite has no samples, and nothing is switched.
template <typename T>
DETOPS_HD OrientationSwitch<T> orientation_switch(T angle, int64_t orientations) {
  const double turns = double(angle) / 360;
  const double position = (turns - floor(turns)) * double(orientations);
  if (!(position >= 0)) return {0, 0, T(1), T(0)};
  const int64_t index = static_cast<int64_t>(position);
  const int64_t first = (orientations - index % orientations) % orientations;
  const T second_weight = T(position - double(index));
  return {first, (first + 1) % orientations, T(1) - second_weight, second_weight};
}

// Converts a RoI to the input of roi_align_rotated, in pixels of the feature map. Adding half a
// pixel to the centre cancels the half pixel that is subtracted there. Each side is at least one
// pixel.
template <typename T>
DETOPS_HD void riroi_to_roi(const T* roi, T spatial_scale, bool clockwise, T* to) {
  to[0] = roi[0];
  to[1] = roi[1] * spatial_scale + T(0.5);
  to[2] = roi[2] * spatial_scale + T(0.5);
  to[3] = max(roi[3] * spatial_scale, T(1));
  to[4] = max(roi[4] * spatial_scale, T(1));
  to[5] = clockwise ? -roi[5] : roi[5];
}

}  // namespace detops::math
