// SPDX-License-Identifier: MIT
#pragma once

#include "roi_pool.h"

// "Deformable Convolutional Networks" (Dai et al., 2017), section 2.2: each bin of a RoI is moved
// by a learned offset in units of the RoI's size. One variant uses the samples of RoIAlign, the
// other is position-sensitive.
namespace detops::math {

struct DeformRoIPooling {
  int64_t pooled_height, pooled_width, sampling_ratio;
  double spatial_scale, gamma;
};

// One axis of a RoI from `low` to `high` in image pixels. Pixel centres are aligned: half a pixel
// is subtracted.
template <typename T>
struct MovableAxis {
  RoIAxis<T> axis;
  T offset_scale;  // pixels per unit of an offset

  DETOPS_HD MovableAxis(const DeformRoIPooling& p, T low, T high, int64_t pooled)
      : axis(roi_axis(low, high, T(p.spatial_scale), true, pooled, p.sampling_ratio)) {
    const T size = T(p.gamma) * (high * T(p.spatial_scale) - low * T(p.spatial_scale));
    offset_scale = size - size == T(0) ? size : T(0);  // a NaN or infinite RoI has no samples
  }

  DETOPS_HD RoIAxis<T> moved(T offset) const {
    return {axis.start + offset_scale * offset, axis.bin, axis.count};
  }
};

// `roi` is (batch index, x1, y1, x2, y2).
template <typename T>
struct MovableRoI {
  MovableAxis<T> rows, cols;

  DETOPS_HD MovableRoI(const DeformRoIPooling& p, const T* roi)
      : rows(p, roi[2], roi[4], p.pooled_height), cols(p, roi[1], roi[3], p.pooled_width) {}
};

// Calls visit(taps, slope) for the samples of bin `p` that contribute, along one axis. `slope` is
// the derivative of the high tap's weight, and minus that of the low tap's, with respect to the
// sample's position: 0 where the border value is used. At a pixel centre, where the one-sided
// derivatives differ, it is that to the right.
template <typename T, typename Visit>
DETOPS_HD void visit_moved(const RoIAxis<T>& axis, int64_t p, int64_t size, Visit&& visit) {
  visit_bin_samples(axis, p, size, -1.0, double(size), [&](T x, const Taps<T>& taps) {
    visit(taps, x >= 0 && taps.high > taps.low ? T(1) : T(0));
  });
}

struct DeformPSRoIPooling {
  int64_t pooled_height, pooled_width, part_size, samples;  // samples per bin and axis
  double spatial_scale, trans_std;
};

// One axis of a RoI from `low` to `high` in image pixels: whole pixels, both ends included.
template <typename T>
struct DeformedAxis {
  T start, size, bin;

  DETOPS_HD DeformedAxis(T low, T high, T scale, int64_t pooled) {
    start = round(low) * scale - T(0.5);
    size = max((round(high) + T(1)) * scale - T(0.5) - start, T(0.1));
    bin = size / T(pooled);
  }

  // Returns the position of sample i of bin p. `shift` is in units of the RoI's size.
  DETOPS_HD T at(int64_t p, T shift, int64_t i, int64_t samples) const {
    return T(p) * bin + start + shift * size + T(i) * (bin / T(samples));
  }
};

// Returns false for a sample that is skipped: more than half a pixel outside, or NaN.
template <typename T>
DETOPS_HD bool deformed_taps(T x, int64_t size, Taps<T>& taps) {
  return x >= T(-0.5) && x <= T(size) - T(0.5) && bilinear_taps(x, size, taps);
}

// Replaces the weights by their derivatives with respect to the sample's position. At a pixel
// centre, where the one-sided derivatives differ, they are 0.
template <typename T>
DETOPS_HD void differentiate(Taps<T>& taps) {
  const bool between = taps.weight_high != 0;
  taps.weight_low = between ? T(-1) : T(0);
  taps.weight_high = between ? T(1) : T(0);
}

// A bin of a RoI, on both axes.
template <typename T>
struct DeformedBin {
  DeformedAxis<T> rows, cols;
  T shift_y = 0, shift_x = 0;
  int64_t ph, pw, samples;

  // `roi` is (batch index, x1, y1, x2, y2). `offset` is that of its class, [2, part, part] with x
  // before y, or null.
  DETOPS_HD DeformedBin(const DeformPSRoIPooling& p, const T* roi, const T* offset, int64_t ph,
                        int64_t pw)
      : rows(roi[2], roi[4], T(p.spatial_scale), p.pooled_height),
        cols(roi[1], roi[3], T(p.spatial_scale), p.pooled_width),
        ph(ph),
        pw(pw),
        samples(p.samples) {
    if (offset == nullptr) return;
    const int64_t part = cell_index(ph, p.pooled_height, p.part_size) * p.part_size +
                         cell_index(pw, p.pooled_width, p.part_size);
    shift_x = offset[part] * T(p.trans_std);
    shift_y = offset[p.part_size * p.part_size + part] * T(p.trans_std);
  }

  DETOPS_HD bool row_taps(int64_t i, int64_t height, Taps<T>& taps) const {
    return deformed_taps(rows.at(ph, shift_y, i, samples), height, taps);
  }
  DETOPS_HD bool col_taps(int64_t i, int64_t width, Taps<T>& taps) const {
    return deformed_taps(cols.at(pw, shift_x, i, samples), width, taps);
  }

  // Returns the number of samples that are not skipped.
  DETOPS_HD int64_t count(int64_t height, int64_t width) const {
    int64_t high = 0, wide = 0;
    Taps<T> taps;
    for (int64_t i = 0; i < samples; ++i) {
      high += row_taps(i, height, taps);
      wide += col_taps(i, width, taps);
    }
    return high * wide;
  }
};

}  // namespace detops::math
