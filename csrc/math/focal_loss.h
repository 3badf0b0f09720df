// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "host_device.h"

namespace detops::math {

// The exponents that need no logarithm, and the others.
enum class Focus { kZero, kOne, kTwo, kAny };

template <typename T>
struct Focal {
  T positive, negative;  // weights
  T gamma;
};

inline Focus focus_of(double gamma) {
  return gamma == 0   ? Focus::kZero
         : gamma == 1 ? Focus::kOne
         : gamma == 2 ? Focus::kTwo
                      : Focus::kAny;
}

// Without weights for an alpha below 0.
template <typename T>
Focal<T> focal_of(double alpha, double gamma) {
  return {alpha < 0 ? T(1) : T(alpha), alpha < 0 ? T(1) : T(1 - alpha), T(gamma)};
}

#include "focal_loss.inl"

// Calls run(std::integral_constant<Focus, focus>()): on the host, the focus as a constant.
template <typename Run>
void with_focus(Focus focus, const Run& run) {
  switch (focus) {
    case Focus::kZero:
      return run(std::integral_constant<Focus, Focus::kZero>());
    case Focus::kOne:
      return run(std::integral_constant<Focus, Focus::kOne>());
    case Focus::kTwo:
      return run(std::integral_constant<Focus, Focus::kTwo>());
    case Focus::kAny:
      return run(std::integral_constant<Focus, Focus::kAny>());
  }
}

}  // namespace detops::math
