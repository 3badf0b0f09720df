// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

// "ReDet" (Han et al., 2021), section 3.3 (RiRoI Align): a rotated RoI is pooled, and then its
// channels, of which there is one for each of several orientations, are switched by its angle.
namespace detops::math {

// Orientation o of the result is `keep` times orientation o + first of what was pooled and `share`
// times o + second, cyclically; both are in [0, orientations).
template <typename T>
struct OrientationSwitch {
  int64_t first, second;
  T keep, share;

  // The transpose, from a gradient of the result to one of what was pooled.
  DETOPS_HD OrientationSwitch transposed(int64_t orientations) const {
    return {(orientations - first) % orientations, (orientations - second) % orientations, keep,
            share};
  }
};

// Of an angle in degrees. One that is not finite has no samples, and switches nothing.
template <typename T>
DETOPS_HD OrientationSwitch<T> orientation_switch(T angle, int64_t orientations) {
  const double turns = double(angle) / 360;
  const double at = (turns - floor(turns)) * double(orientations);
  if (!(at >= 0)) return {0, 0, T(1), T(0)};
  const int64_t whole = static_cast<int64_t>(at);
  const int64_t first = (orientations - whole % orientations) % orientations;
  const T share = T(at - double(whole));
  return {first, (first + 1) % orientations, T(1) - share, share};
}

// The RoI as roi_align_rotated takes it, in pixels of the map: no half pixel comes off the centre,
// and no side is shorter than a pixel.
template <typename T>
DETOPS_HD void place_riroi(const T* roi, T spatial_scale, bool clockwise, T* to) {
  to[0] = roi[0];
  to[1] = roi[1] * spatial_scale + T(0.5);
  to[2] = roi[2] * spatial_scale + T(0.5);
  to[3] = max(roi[3] * spatial_scale, T(1));
  to[4] = max(roi[4] * spatial_scale, T(1));
  to[5] = clockwise ? -roi[5] : roi[5];
}

}  // namespace detops::math
