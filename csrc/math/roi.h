// SPDX-License-Identifier: MIT
#pragma once

#include "bilinear.h"

// "Mask R-CNN" (He et al., 2017), section 3 (RoIAlign). A bin's value is the mean of bilinear
// samples on a regular grid, so it is a product of one rule for rows and one for columns. This file
// implements the rule of one axis, and both backends build the two-dimensional op from it.
namespace detops::math {

// float32 cannot represent every sample count above this. A bin that needs more samples (over 1.6e7
// pixels wide) has a mean of 0 to within rounding, and is defined as empty.
constexpr double kMaxSamples = 1 << 24;

template <typename T>
struct RoIAxis {
  T start;  // of the RoI, in pixels of the feature map
  T bin;    // size of one bin
  T count;  // samples per bin; 0 for an adaptive RoI that is empty, inverted, infinite or NaN
};

// `sampling_ratio` <= 0 means about one sample per pixel.
template <typename T>
DETOPS_HD RoIAxis<T> roi_axis(T start, T size, int64_t pooled, int64_t sampling_ratio) {
  const T bin = size / T(pooled);
  const T count = sampling_ratio > 0 ? T(sampling_ratio) : ceil(bin);
  return {start, bin, count > 0 && double(count) <= kMaxSamples ? count : T(0)};
}

// One axis of a RoI [low, high] in image pixels. If not `aligned`, there is no half-pixel shift,
// and the RoI is at least one pixel wide (the first published form).
template <typename T>
DETOPS_HD RoIAxis<T> roi_axis(T low, T high, T spatial_scale, bool aligned, int64_t pooled,
                              int64_t sampling_ratio) {
  const T shift = aligned ? T(0.5) : T(0);
  const T start = low * spatial_scale - shift;
  const T size = high * spatial_scale - shift - start;
  return roi_axis(start, aligned ? size : max(size, T(1)), pooled, sampling_ratio);
}

// Narrows [first, last) to the samples i for which origin + (i + 0.5) * step can lie in
// [low, high], with two samples of slack on both sides. The caller makes the exact decision.
DETOPS_HD void clip_samples(double origin, double step, double low, double high, int64_t& first,
                            int64_t& last) {
  constexpr double kMinStep = 1e-3;  // clipping gains nothing for smaller steps
  if (!(step >= kMinStep || step <= -kMinStep)) return;
  const double to_low = (low - origin) / step, to_high = (high - origin) / step;
  const double from = (step > 0 ? to_low : to_high) - 2.5;
  const double to = (step > 0 ? to_high : to_low) + 2.5;
  if (!(from < double(last)) || !(to > double(first))) {
    last = first;
    return;
  }
  if (from > double(first)) first = static_cast<int64_t>(from);
  if (to < double(last)) last = static_cast<int64_t>(to);
}

// Calls visit(x, taps) for the samples of bin `p` that contribute on a feature map of `size`
// pixels. Samples that cannot reach the feature map are skipped, so the cost is O(size + a few)
// even if an adaptive RoI is 1e7 pixels wide. If there are many, samples outside [low, high] may be
// skipped.
template <typename T, typename Visit>
DETOPS_HD void visit_bin_samples(const RoIAxis<T>& axis, int64_t p, int64_t size, double low,
                                 double high, Visit&& visit) {
  const T origin = axis.start + T(p) * axis.bin;
  int64_t first = 0, last = static_cast<int64_t>(axis.count);
  if (last > 16) {
    clip_samples(double(origin), double(axis.bin) / double(axis.count), low, high, first, last);
  }
  for (int64_t i = first; i < last; ++i) {
    Taps<T> taps;
    const T x = origin + (T(i) + T(0.5)) * axis.bin / axis.count;
    if (bilinear_taps(x, size, taps)) visit(x, taps);
  }
}

// Calls visit(index, weight) for the taps of these samples. Weights include 1/count.
template <typename T, typename Visit>
DETOPS_HD void visit_taps(const RoIAxis<T>& axis, int64_t p, int64_t size, double low, double high,
                          Visit&& visit) {
  visit_bin_samples(axis, p, size, low, high, [&](T, const Taps<T>& taps) {
    visit(taps.low, taps.weight_low / axis.count);
    if (taps.weight_high != 0) visit(taps.high, taps.weight_high / axis.count);
  });
}

// Merges the taps that produce(add) reports by add(index, weight), and calls visit(index, weight)
// once per pixel, or at most twice if the axis runs backwards. Samples come in order and read a
// pixel and its neighbour, so a pixel that was read before is one of the last two.
template <typename T, typename Produce, typename Visit>
DETOPS_HD void merge_taps(Produce&& produce, Visit&& visit) {
  int64_t last = -1, previous = -1;
  T last_weight = 0, previous_weight = 0;
  produce([&](int64_t i, T weight) {
    if (i == last) {
      last_weight += weight;
    } else if (i == previous) {
      previous_weight += weight;
    } else {
      if (previous >= 0) visit(previous, previous_weight);
      previous = last;
      previous_weight = last_weight;
      last = i;
      last_weight = weight;
    }
  });
  if (previous >= 0) visit(previous, previous_weight);
  if (last >= 0) visit(last, last_weight);
}

// Like visit_taps, but merges the taps of each pixel.
template <typename T, typename Visit>
DETOPS_HD void visit_pixels(const RoIAxis<T>& axis, int64_t p, int64_t size, double low,
                            double high, Visit&& visit) {
  merge_taps<T>([&](auto&& add) { visit_taps(axis, p, size, low, high, add); }, visit);
}

// The most pixels that a bin can visit.
template <typename T>
DETOPS_HD int64_t max_pixels(const RoIAxis<T>& axis) {
  const int64_t taps = 2 * static_cast<int64_t>(axis.count);
  if (!(abs(axis.bin) < T(1 << 20))) return taps;
  return min(taps, (axis.bin < 0 ? 2 : 1) * (static_cast<int64_t>(abs(axis.bin)) + 3));
}

// Pyramid level of a RoI, "Feature Pyramid Networks" (Lin et al., 2017), equation 1:
// floor(canonical_level + log2(sqrt(area) / canonical_scale) + 1e-6), within [0, levels) after
// subtracting `first_level`. Written with comparisons and correctly rounded operations instead of
// log2, so that every device assigns a RoI to the same level.
template <typename T>
DETOPS_HD int64_t roi_level(T x1, T y1, T x2, T y2, double canonical_scale, int64_t canonical_level,
                            int64_t first_level, int64_t levels) {
  const double ratio =
      double(sqrt((x2 - x1) * (y2 - y1))) / canonical_scale * 1.00000069314742;  // 2^1e-6
  int64_t level = 0;
  while (level + 1 < levels &&
         ratio >= ::ldexp(1.0, static_cast<int>(level + 1 + first_level - canonical_level))) {
    ++level;
  }
  return level;  // a NaN area compares false: the finest level
}

}  // namespace detops::math
