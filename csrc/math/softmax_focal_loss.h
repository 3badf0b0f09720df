// SPDX-License-Identifier: MIT
#pragma once

#include "focal_loss.h"

namespace detops::math {

// "Focal Loss for Dense Object Detection" (Lin et al., 2017), equation 5, for classes of which one
// holds: -scale (1 - p)^gamma log p, where p is the softmax's probability of the target class t.
// Logits enter less their maximum m, and 1 - p comes from the other classes, so that nothing
// overflows or cancels.
template <typename T>
struct SoftmaxRow {
  T shift;  // x_t - m
  T own;    // e^shift
  T rest;   // the sum of e^(x_j - m) over the other classes

  DETOPS_HD T sum() const { return own + rest; }
  DETOPS_HD T miss() const { return rest / sum(); }  // 1 - p
  DETOPS_HD T log_p() const { return shift - (shift < T(0) ? log(sum()) : log1p(rest)); }
};

template <Focus focus, typename T>
DETOPS_HD T softmax_focal_loss(const SoftmaxRow<T>& row, T scale, T gamma) {
  return scale * focal::power<focus>(row.miss(), gamma) * -row.log_p();
}

// The derivative to the logits is this number times 1 - p for the target class and times -p_j for
// each other class. log p / (1 - p) is bounded where p goes to 1, unlike (1 - p)^(gamma - 1).
template <Focus focus, typename T>
DETOPS_HD T softmax_focal_slope(const SoftmaxRow<T>& row, T scale, T gamma) {
  const T p = row.own / row.sum(), miss = row.miss();
  const T ratio = p > T(0) && miss > T(0) ? p * (row.log_p() / miss) : T(0);
  return -scale * focal::power<focus>(miss, gamma) * (T(1) - gamma * ratio);
}

// One loss for each row of logits. The weights, one for each class, may be null.
template <typename T>
struct SoftmaxFocal {
  T alpha, gamma;
  const T* weights;
  int64_t classes;

  DETOPS_HD bool counts(int64_t target) const { return target >= 0 && target < classes; }
  DETOPS_HD T scale(int64_t target) const {
    return weights == nullptr ? alpha : alpha * weights[target];
  }
};

}  // namespace detops::math
