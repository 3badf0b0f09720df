// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "../../math/box.h"
#include "../../math/half.h"
#include "../common/buffer.h"

// What NMS kernels read and write. Kernels call always-inline functions only: this header is shared
// by code compiled for different instruction sets.
namespace detops::cpu {

#define DETOPS_SHARED_INLINE inline __attribute__((always_inline))

// Boxes as a structure of arrays, with the filter's scaled areas.
template <typename T>
struct NmsBoxes {
  T *x1, *y1, *x2, *y2, *scaled;
};

// `b` has a box, and its scaled area.
template <typename T, typename Bounded>
DETOPS_SHARED_INLINE void put(const NmsBoxes<T>& list, int64_t k, const Bounded& b) {
  list.x1[k] = b.box.x1;
  list.y1[k] = b.box.y1;
  list.x2[k] = b.box.x2;
  list.y2[k] = b.box.y2;
  list.scaled[k] = b.scaled;
}

// Owns a list. It is read a few vectors at a time, hence room for kPadding boxes behind the last.
template <typename T>
class NmsBoxList {
 public:
  NmsBoxes<T> reserve(int64_t count) {
    constexpr int64_t kPadding = 64;
    const int64_t stride = (count + 2 * kPadding - 1) / kPadding * kPadding;
    T* x1 = data_.reserve(5 * stride);
    return {x1, x1 + stride, x1 + 2 * stride, x1 + 3 * stride, x1 + 4 * stride};
  }

 private:
  Buffer<T> data_;
};

// Boxes of one class in the order of selection.
template <typename T>
struct NmsSegment {
  const T *x1, *y1, *x2, *y2;  // [count]
  int64_t count;
  double threshold;  // not NaN
  int64_t limit;     // how many to keep at most: the first
  uint8_t* keep;     // [count], out: 1 for a box that no kept box before it suppresses
};

// A box of an NmsBoxes or an NmsSegment.
template <template <typename> class Columns, typename T>
DETOPS_SHARED_INLINE math::Box<T> box_at(const Columns<T>& c, int64_t i) {
  return {c.x1[i], c.y1[i], c.x2[i], c.y2[i]};
}

// Below 0 even boxes that do not meet suppress each other. From 0 on a box suppresses nothing, and
// nothing suppresses it, where it is inverted or its area is NaN, infinite or not positive.
template <typename T>
DETOPS_SHARED_INLINE bool can_meet(const math::Box<T>& box) {
  const T area = math::area(box);
  return area > 0 && area - area == 0 && box.x2 > box.x1;
}

constexpr uint32_t kNoSlot = ~uint32_t(0);

}  // namespace detops::cpu
