// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

DETOPS_INLINE Vector<float> power_of_two(Vector<float> shifted) {
  using Constants = math::ExpConstants<float>;
  const Vector<int32_t> n =
      (Vector<int32_t>)shifted - (Vector<int32_t>)splat(float(Constants::kRounder));
  return (Vector<float>)((n + Constants::kBias) << Constants::kFraction);
}

DETOPS_INLINE Vector<double> power_of_two(Vector<double> shifted) {
  using Constants = math::ExpConstants<double>;
  const Vector<int64_t> n =
      (Vector<int64_t>)shifted - (Vector<int64_t>)splat(double(Constants::kRounder));
  return (Vector<double>)((n + Constants::kBias) << Constants::kFraction);
}

#include "../../math/overlap.inl"
//
#include "../../math/decay.inl"
