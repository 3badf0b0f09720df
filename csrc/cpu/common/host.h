// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "../../ops.h"
#include "../simd/isa.h"
#include "buffer.h"
#include "element_type.h"
#include "memory.h"

// What host functions begin with.
namespace detops::cpu {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How many items are worth a thread, if so much work is and each of them is `each`.
inline int64_t grain_for(int64_t work, int64_t each) {
  return std::max<int64_t>(1, work / std::max<int64_t>(1, each));
}

}  // namespace detops::cpu
