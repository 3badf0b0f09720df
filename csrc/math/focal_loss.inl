// SPDX-License-Identifier: MIT
// See host_device.h.

// "Focal Loss for Dense Object Detection" (Lin et al., 2017), equation 5, with targets t in [0, 1]:
//   weight * miss^gamma * cross,  miss = 1 - p_t = p (1 - t) + (1 - p) t,
// where p is the sigmoid of the input x and cross the binary cross entropy. Both p and 1 - p are
// computed from e^-|x|, which avoids overflow and cancellation.
namespace focal {

template <typename V>
struct Parts {
  V p, q;               // q = 1 - p
  V too_high, too_low;  // p (1 - t), q t: the error of the prediction on either side
  V miss, cross, weight;
};

template <typename T, typename V>
DETOPS_HD Parts<V> parts(const math::FocalParams<T>& f, V x, V t) {
  const auto positive = x > T(0);
  const V exp_neg = exp(positive ? -x : x), complement = T(1) - t;
  const V likely = T(1) / (T(1) + exp_neg), unlikely = exp_neg * likely;
  const V p = positive ? likely : unlikely, q = positive ? unlikely : likely;
  const V too_high = p * complement, too_low = q * t;
  const V cross = (positive ? x * complement : -x * t) + log1p(exp_neg);
  return {
      p, q, too_high, too_low, too_high + too_low, cross, f.positive * t + f.negative * complement};
}

template <math::Focus focus, typename T, typename V>
DETOPS_HD V power(V miss, T gamma) {
  if constexpr (focus == math::Focus::kZero) return V{} + T(1);
  if constexpr (focus == math::Focus::kOne) return miss;
  if constexpr (focus == math::Focus::kTwo) return miss * miss;
  // The smallest normal number has a finite logarithm, and smaller values do not matter.
  constexpr T kSmallest = sizeof(T) == 4 ? T(1.17549435e-38) : T(2.2250738585072014e-308);
  return exp(gamma * log(miss > kSmallest ? miss : V{} + kSmallest));
}

template <math::Focus focus, typename T, typename V>
DETOPS_HD V loss(const math::FocalParams<T>& f, V x, V t) {
  const Parts<V> s = parts(f, x, t);
  return s.weight * s.cross * power<focus>(s.miss, f.gamma);
}

// d loss / dx. With dp/dx = p q: d miss/dx = (1 - 2 t) p q, and d cross/dx = p - t.
template <math::Focus focus, typename T, typename V>
DETOPS_HD V slope(const math::FocalParams<T>& f, V x, V t) {
  const Parts<V> s = parts(f, x, t);
  const V to_cross = s.too_high - s.too_low, to_miss = s.cross * (T(1) - (t + t)) * (s.p * s.q);
  if constexpr (focus == math::Focus::kZero) return s.weight * to_cross;
  if constexpr (focus == math::Focus::kOne) return s.weight * (s.miss * to_cross + to_miss);
  if constexpr (focus == math::Focus::kTwo) {
    return s.weight * s.miss * (s.miss * to_cross + (to_miss + to_miss));
  }
  // p q / miss is at most 1, while miss^(gamma - 1) alone could overflow.
  const V ratio = s.miss > T(0) ? to_miss / s.miss : V{};
  return s.weight * power<focus>(s.miss, f.gamma) * (to_cross + f.gamma * ratio);
}

}  // namespace focal

// The same loss for mutually exclusive classes: -scale (1 - p)^gamma log p, where p is the softmax
// probability of the target class t. The maximum m is subtracted from the logits, and 1 - p is
// summed from the other classes, which avoids overflow and cancellation.
namespace softmax_focal {

template <typename V>
struct Row {
  V shift;       // x_t - m
  V exp_target;  // e^shift
  V exp_others;  // the sum of e^(x_j - m) over the other classes
};

// The vector log1p accepts arguments up to 1. The vector log maps NaN to a number, and adding
// sum - sum restores the NaN.
template <typename V>
DETOPS_HD V log_p(const Row<V>& row) {
  const V sum = row.exp_target + row.exp_others;
  const auto use_log = (row.shift < V{}) | (row.exp_others > V{} + 1);
  return row.shift - (use_log ? log(sum) : log1p(row.exp_others)) + (sum - sum);
}

template <math::Focus focus, typename T, typename V>
DETOPS_HD V loss(const Row<V>& row, V scale, T gamma) {
  const V miss = row.exp_others / (row.exp_target + row.exp_others);  // 1 - p
  return scale * focal::power<focus>(miss, gamma) * -log_p(row);
}

// The derivative with respect to a logit is this value times `exp_others` for the target class, and
// times -e^(x_j - m) for every other class j. log p / (1 - p) stays bounded as p approaches 1,
// unlike (1 - p)^(gamma - 1).
template <math::Focus focus, typename T, typename V>
DETOPS_HD V slope(const Row<V>& row, V scale, T gamma) {
  const V sum = row.exp_target + row.exp_others, miss = row.exp_others / sum;
  const V log = log_p(row);
  // p log p is 0 where p is 0 and log p is -infinity.
  const auto inside = (row.exp_others > V{}) & (log > V{} - T(3e38));
  const V ratio = inside ? row.exp_target * (log / row.exp_others) : V{};
  return -scale * focal::power<focus>(miss, gamma) * (T(1) - gamma * ratio) / sum;
}

}  // namespace softmax_focal
