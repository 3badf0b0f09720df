// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "../../math/box.h"
#include "../../math/half.h"

// What NMS kernels read and write. Plain data and always-inline functions only: this header is
// shared by code compiled for different instruction sets.
namespace detops::cpu {

#define DETOPS_SHARED_INLINE inline __attribute__((always_inline))

// Boxes as a structure of arrays, with the filter's scaled areas. Lists of them are read a few
// vectors at a time, hence room for kNmsPadding boxes behind the last.
template <typename T>
struct NmsBoxes {
  T *x1, *y1, *x2, *y2, *scaled;
};
constexpr int64_t kNmsPadding = 64;

// Boxes of one class in the order of selection.
template <typename T>
struct NmsSegment {
  const T* x1;  // [count]
  const T* y1;
  const T* x2;
  const T* y2;
  int64_t count;
  double threshold;  // not NaN
  int64_t limit;     // how many to keep at most: the first
  uint8_t* keep;     // [count], out: 1 for a box that no kept box before it suppresses
};

// Below 0 even boxes that do not meet suppress each other. From 0 on a box suppresses nothing, and
// nothing suppresses it, where it is inverted or its area is NaN, infinite or not positive.
template <typename T>
DETOPS_SHARED_INLINE bool can_meet(const math::Box<T>& box) {
  const T area = math::area(box);
  return area > 0 && area - area == 0 && box.x2 > box.x1;
}

constexpr uint32_t kNoSlot = ~uint32_t(0);

}  // namespace detops::cpu
