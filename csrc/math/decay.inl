// SPDX-License-Identifier: MIT
// See host_device.h. This comes after overlap.inl, and after a power_of_two of vectors.

namespace decay {

// exp of x <= 0, without fused operations: the same bits on every device and instruction set, since
// scores decide what is selected next. Numbers below the smallest normal one are 0.
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

// The score of a box whose IoU with the one just selected is `iou`.
template <math::Decay kind, typename T, typename V>
DETOPS_HD V decayed(V score, V iou, const math::SoftNmsRule<T>& rule) {
  if (kind == math::Decay::kGaussian) return score * exp<T>(-(iou * iou) * rule.per_sigma);
  const V weight = kind == math::Decay::kLinear ? T(1) - iou : V{};
  return iou > rule.threshold ? score * weight : score;
}

// Matrix NMS. A score falls by the smallest of the factors that the better boxes i of its label
// give: (1 - iou) / (1 - most), or exp(-sigma (iou^2 - most^2)), with `most` the largest IoU of i
// with a box better than i. Of a factor, `term` is what depends on i alone, and `weight` something
// that grows as it falls. A factor 0 / 0, of an i that equals a better box, is NaN: no weight,
// since that better box has said it all.
template <math::Decay kind, typename T>
DETOPS_HD T matrix_term(T most) {
  return kind == math::Decay::kLinear ? T(1) / (T(1) - most) : most * most;
}

template <math::Decay kind, typename T, typename V>
DETOPS_HD V matrix_weight(V iou, V term) {
  return kind == math::Decay::kLinear ? -((T(1) - iou) * term) : iou * iou - term;
}

// The weight of the factor 1. Boxes that do not meet never have a larger one.
template <math::Decay kind, typename T>
DETOPS_HD T matrix_least_weight() {
  return kind == math::Decay::kLinear ? T(-1) : T(0);
}

template <math::Decay kind, typename T>
DETOPS_HD T matrix_factor(T weight, T sigma) {
  return kind == math::Decay::kLinear ? -weight : exp<T>(-sigma * weight);
}

}  // namespace decay
