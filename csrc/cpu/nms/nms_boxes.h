// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

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

// Owns a list. It is read a few vectors at a time, hence room for kPadding boxes after the last.
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

// Boxes as a structure of arrays, with their areas and one more number of each. After the last
// there are empty boxes, as many as a vector can reach beyond it.
constexpr int64_t kColumnPadding = 16;

template <typename T>
struct BoxColumns {
  T *x1, *y1, *x2, *y2, *area, *more;
  Buffer<T> memory;

  // At most so many; all are empty.
  explicit BoxColumns(int64_t most) {
    const int64_t stride = most + kColumnPadding;
    T* next = memory.reserve(6 * stride);
    std::fill_n(next, 6 * stride, T(0));
    for (T** column : {&x1, &y1, &x2, &y2, &area, &more}) {
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
  int64_t limit;     // how many to keep at most: the first
  uint8_t* keep;     // [count], out: 1 for a box that no kept box before it suppresses
};

// A box of any of these.
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
