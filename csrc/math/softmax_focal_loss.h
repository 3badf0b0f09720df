// SPDX-License-Identifier: MIT
#pragma once

#include "focal_loss.h"

namespace detops::math {

#include "softmax_focal_loss.inl"

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
