// SPDX-License-Identifier: MIT
#pragma once

#include "roi.h"

// "Deformable Convolutional Networks" (Dai et al., 2017), section 2.2, on RoIAlign's samples: each
// bin is moved by a learned offset, in units of the RoI's size.
namespace detops::math {

struct DeformRoIPooling {
  int64_t pooled_height, pooled_width, sampling_ratio;
  double spatial_scale, gamma;
};

// One axis of a RoI from `low` to `high` in image pixels. Pixel centres match: half a pixel comes
// off.
template <typename T>
struct MovableAxis {
  RoIAxis<T> axis;
  T reach;  // pixels per unit of an offset

  DETOPS_HD MovableAxis(const DeformRoIPooling& p, T low, T high, int64_t pooled)
      : axis(roi_axis(low, high, T(p.spatial_scale), true, pooled, p.sampling_ratio)) {
    const T size = T(p.gamma) * (high * T(p.spatial_scale) - low * T(p.spatial_scale));
    reach = size - size == T(0) ? size : T(0);  // a NaN or infinite RoI is nowhere
  }

  DETOPS_HD RoIAxis<T> moved(T offset) const {
    return {axis.start + reach * offset, axis.bin, axis.count};
  }
};

// `roi` is (batch index, x1, y1, x2, y2).
template <typename T>
struct MovableRoI {
  MovableAxis<T> rows, cols;

  DETOPS_HD MovableRoI(const DeformRoIPooling& p, const T* roi)
      : rows(p, roi[2], roi[4], p.pooled_height), cols(p, roi[1], roi[3], p.pooled_width) {}
};

// Calls visit(taps, slope) for the samples of bin `p` that count, along one axis. The slope is that
// of the value at the upper tap against the lower one, as the sample moves: 0 where it is taken
// from the border. It is that to the right of a pixel's centre, where the two sides differ.
template <typename T, typename Visit>
DETOPS_HD void visit_moved(const RoIAxis<T>& axis, int64_t p, int64_t size, Visit&& visit) {
  visit_bin_samples(axis, p, size, -1.0, double(size), [&](T x, const Taps<T>& taps) {
    visit(taps, x >= 0 && taps.high > taps.low ? T(1) : T(0));
  });
}

}  // namespace detops::math
