// SPDX-License-Identifier: MIT
// Included in namespace math by softmax_focal_loss.h, and once per instruction set by the CPU
// kernels; T is a number, V that number or a vector of it.

// "Focal Loss for Dense Object Detection" (Lin et al., 2017), equation 5, for classes of which one
// holds: -scale (1 - p)^gamma log p, where p is the softmax's probability of the target class t.
// Logits enter less their maximum m, and 1 - p comes from the other classes, so that nothing
// overflows or cancels.
namespace softmax_focal {

template <typename V>
struct Row {
  V shift;  // x_t - m
  V own;    // e^shift
  V rest;   // the sum of e^(x_j - m) over the other classes
};

// A vector's log1p takes numbers up to 1, and its log gives a number for a NaN.
template <typename V>
DETOPS_HD V log_p(const Row<V>& row) {
  const V sum = row.own + row.rest;
  const auto apart = (row.shift < V{}) | (row.rest > V{} + 1);
  return row.shift - (apart ? log(sum) : log1p(row.rest)) + (sum - sum);
}

template <math::Focus focus, typename T, typename V>
DETOPS_HD V loss(const Row<V>& row, V scale, T gamma) {
  const V miss = row.rest / (row.own + row.rest);  // 1 - p
  return scale * focal::power<focus>(miss, gamma) * -log_p(row);
}

// The derivative to the logits is this number times `rest` for the target class and times
// -e^(x_j - m) for each other class. log p / (1 - p) is bounded where p goes to 1, unlike
// (1 - p)^(gamma - 1).
template <math::Focus focus, typename T, typename V>
DETOPS_HD V slope(const Row<V>& row, V scale, T gamma) {
  const V sum = row.own + row.rest, miss = row.rest / sum;
  const V log = log_p(row);
  // p log p is 0 where p is, and log p minus infinity.
  const auto inside = (row.rest > V{}) & (log > V{} - T(3e38));
  const V ratio = inside ? row.own * (log / row.rest) : V{};
  return -scale * focal::power<focus>(miss, gamma) * (T(1) - gamma * ratio) / sum;
}

}  // namespace softmax_focal
