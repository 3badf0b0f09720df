// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "../../math/box.h"
#include "../../math/half.h"
#include "buffer.h"

// Data structures of the NMS kernels. This header is shared by code compiled for different
// instruction sets, so kernels call only its always-inline functions.
namespace detops::cpu {

#define DETOPS_SHARED_INLINE inline __attribute__((always_inline))

// Boxes as a structure of arrays, with the scaled areas of the filter.
template <typename T>
struct NmsBoxes {
  T *x1, *y1, *x2, *y2, *scaled;
};

// Stores box k. `b` has members `box` and `scaled`, its scaled area.
template <typename T, typename Bounded>
DETOPS_SHARED_INLINE void put(const NmsBoxes<T>& list, int64_t k, const Bounded& b) {
  list.x1[k] = b.box.x1;
  list.y1[k] = b.box.y1;
  list.x2[k] = b.box.x2;
  list.y2[k] = b.box.y2;
  list.scaled[k] = b.scaled;
}

// Owns a list with room for kPadding boxes after the last, because kernels read a few vectors at a
// time.
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

// Boxes as a structure of arrays, with their areas and one more value each. kColumnPadding empty
// boxes follow the last one, because a vector may reach that far beyond it.
constexpr int64_t kColumnPadding = 16;

template <typename T>
struct BoxColumns {
  T *x1, *y1, *x2, *y2, *area, *extra;
  Buffer<T> memory;

  // Allocates `capacity` boxes, all empty.
  explicit BoxColumns(int64_t capacity) {
    const int64_t stride = capacity + kColumnPadding;
    T* next = memory.reserve(6 * stride);
    std::fill_n(next, 6 * stride, T(0));
    for (T** column : {&x1, &y1, &x2, &y2, &area, &extra}) {
      *column = next;
      next += stride;
    }
  }

  void set(int64_t i, const math::Box<T>& box) const {
    x1[i] = box.x1, y1[i] = box.y1, x2[i] = box.x2, y2[i] = box.y2;
    area[i] = math::area(box);
  }
};

// Boxes of one class in the order of selection.
template <typename T>
struct NmsSegment {
  const T *x1, *y1, *x2, *y2;  // [count]
  int64_t count;
  double threshold;  // not NaN
  int64_t limit;     // maximum number of boxes to keep: the first ones
  uint8_t* keep;     // [count], output: 1 for a box that no earlier kept box suppresses
};

// Returns box i of any of these structures.
template <template <typename> class Columns, typename T>
DETOPS_SHARED_INLINE math::Box<T> box_at(const Columns<T>& c, int64_t i) {
  return {c.x1[i], c.y1[i], c.x2[i], c.y2[i]};
}

// Returns whether a box can suppress others, or be suppressed, at a threshold of at least 0. It
// cannot if it is inverted or its area is NaN, infinite or not positive. Below 0 even disjoint
// boxes suppress each other.
template <typename T>
DETOPS_SHARED_INLINE bool can_overlap(const math::Box<T>& box) {
  const T area = math::area(box);
  return area > 0 && area - area == 0 && box.x2 > box.x1;
}

constexpr uint32_t kNoSlot = ~uint32_t(0);

}  // namespace detops::cpu
