// SPDX-License-Identifier: MIT
// See host_device.h. Include this after overlap.inl and after a power_of_two for vectors.

namespace decay {

// exp(x) for x <= 0, without fused operations: the bits are the same on every device and
// instruction set, since scores decide which box is selected next. Results below exp(kLowest),
// about the smallest normal number, are 0.
template <typename T, typename V>
DETOPS_HD V exp(V x) {
  using Constants = math::ExpConstants<T>;
  const V shifted =
      max(V{} + Constants::kLowest, x) * T(1.4426950408889634074) + Constants::kRounder;
  const V n = shifted - Constants::kRounder;
  const V r = x - n * Constants::kLog2High - n * Constants::kLog2Low;
  V sum = V{} + T(1);
  for (int k = Constants::kTerms; k > 0; --k) sum = sum * r * (T(1) / T(k)) + T(1);
  return x < Constants::kLowest ? V{} : sum * power_of_two(shifted);
}

// Returns the new score of a box whose IoU with the box just selected is `iou`.
template <math::Decay kind, typename T, typename V>
DETOPS_HD V decayed(V score, V iou, const math::SoftNmsRule<T>& rule) {
  if (kind == math::Decay::kGaussian) return score * exp<T>(-(iou * iou) * rule.inverse_sigma);
  const V weight = kind == math::Decay::kLinear ? T(1) - iou : V{};
  return iou > rule.threshold ? score * weight : score;
}

// Matrix NMS. A score is multiplied by the smallest of the factors from the better boxes i of its
// label: (1 - iou) / (1 - most), or exp(-sigma (iou^2 - most^2)), with `most` the largest IoU of i
// with a box better than i. `term` is the part of a factor that depends on i alone, and `weight`
// grows as the factor falls. A factor of 0 / 0, from an i that equals a better box, has the weight
// NaN and never counts: the better box has counted already.
template <math::Decay kind, typename T>
DETOPS_HD T matrix_term(T most) {
  return kind == math::Decay::kLinear ? T(1) / (T(1) - most) : most * most;
}

template <math::Decay kind, typename T, typename V>
DETOPS_HD V matrix_weight(V iou, V term) {
  return kind == math::Decay::kLinear ? -((T(1) - iou) * term) : iou * iou - term;
}

// The weight of the factor 1. Disjoint boxes never have a larger weight.
template <math::Decay kind, typename T>
DETOPS_HD T matrix_least_weight() {
  return kind == math::Decay::kLinear ? T(-1) : T(0);
}

template <math::Decay kind, typename T>
DETOPS_HD T matrix_factor(T weight, T sigma) {
  return kind == math::Decay::kLinear ? -weight : exp<T>(-sigma * weight);
}

}  // namespace decay
