// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

// The exponents that are computed without a logarithm, and any other.
enum class Focus { kZero, kOne, kTwo, kAny };

template <typename T>
struct FocalParams {
  T positive, negative;  // weights
  T gamma;
};

// A negative alpha disables the weights.
template <typename T>
FocalParams<T> focal_params(double alpha, double gamma) {
  return {alpha < 0 ? T(1) : T(alpha), alpha < 0 ? T(1) : T(1 - alpha), T(gamma)};
}

#include "focal_loss.inl"

// One loss per row of logits. `weights`, one per class, may be null.
template <typename T>
struct SoftmaxFocal {
  T alpha, gamma;
  const T* weights;
  int64_t classes;

  DETOPS_HD bool is_class(int64_t target) const { return target >= 0 && target < classes; }
  DETOPS_HD T scale(int64_t target) const {
    return weights == nullptr ? alpha : alpha * weights[target];
  }
};

template <typename Run>
void with_focus(double gamma, const Run& run) {
  const Focus focus = gamma == 0   ? Focus::kZero
                      : gamma == 1 ? Focus::kOne
                      : gamma == 2 ? Focus::kTwo
                                   : Focus::kAny;
  with_constant<Focus::kZero, Focus::kOne, Focus::kTwo, Focus::kAny>(focus, run);
}

}  // namespace detops::math
