// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>

#include "host_device.h"

namespace detops::math {

template <typename T>
using DescendingKey = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

// Returns an unsigned key of a float or double that ascends as the score descends. NaN of either
// sign comes first, as in a descending torch.sort; -0 and +0 are equal.
template <typename T>
DETOPS_HD DescendingKey<T> descending_key(T score) {
  using Key = DescendingKey<T>;
  constexpr Key kSign = Key(1) << (8 * sizeof(T) - 1);
  if (score != score) return Key(0);
  score += T(0);
  Key bits;
  std::memcpy(&bits, &score, sizeof bits);
  return static_cast<Key>(bits & kSign ? bits : ~bits & ~kSign);
}

}  // namespace detops::math
