// SPDX-License-Identifier: MIT
#pragma once

#include <limits>

#include "half.h"
#include "overlap.h"

// Score decay of soft-NMS and matrix NMS: the score of a box that overlaps a better one is lowered.
namespace detops::math {

enum class Decay { kLinear, kGaussian, kNaive };

template <typename Run>
void with_decay(Decay decay, const Run& run) {
  with_constant<Decay::kLinear, Decay::kGaussian, Decay::kNaive>(decay, run);
}

// Returns the finite T nearest to x.
template <typename T>
T nearest_finite(double x) {
  constexpr double kMax = static_cast<double>(std::numeric_limits<T>::max());
  return static_cast<T>(x < kMax ? (x > -kMax ? x : -kMax) : kMax);
}

template <typename T>
struct SoftNmsRule {
  T threshold;      // IoU > threshold decays a score
  T inverse_sigma;  // 1 / sigma
  T min_score;      // boxes with a lower score are dropped
};

template <typename T>
SoftNmsRule<T> soft_nms_rule(double threshold, double sigma, double min_score) {
  // The largest T that is not above the threshold separates the same IoUs, which are in [0, 1].
  const double limit = threshold < 2 ? (threshold > -1 ? threshold : -1) : 2;
  T low = static_cast<T>(limit);
  if (static_cast<double>(low) > limit) low = std::nextafter(low, T(-2));
  return {low, nearest_finite<T>(1 / sigma), nearest_finite<T>(min_score)};
}

// exp(x) = 2^n (1 + r + r^2 / 2 + ...) with x = n ln 2 + r. ln 2 is split into two constants such
// that n times the first is exact.
template <typename T>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  using Bits = uint32_t;
  static constexpr int kTerms = 7, kBias = 127, kFraction = 23;
  static constexpr float kRounder = 12582912.0f, kLowest = -87.0f;
  static constexpr float kLog2High = 0.693359375f, kLog2Low = -2.12194440e-4f;
};
template <>
struct ExpConstants<double> {
  using Bits = uint64_t;
  static constexpr int kTerms = 13, kBias = 1023, kFraction = 52;
  static constexpr double kRounder = 6755399441055744.0, kLowest = -708.0;
  static constexpr double kLog2High = 6.93147180369123816490e-1;
  static constexpr double kLog2Low = 1.90821492927058770002e-10;
};

// Returns 2^n for `shifted` = ExpConstants<T>::kRounder + n, whose last bits hold n.
template <typename T>
DETOPS_HD T power_of_two(T shifted) {
  using Constants = ExpConstants<T>;
  const T rounder = Constants::kRounder;
  typename Constants::Bits a, b;
  memcpy(&a, &shifted, sizeof a);
  memcpy(&b, &rounder, sizeof b);
  a = (a - b + Constants::kBias) << Constants::kFraction;
  memcpy(&shifted, &a, sizeof a);
  return shifted;
}

#include "decay.inl"

}  // namespace detops::math
