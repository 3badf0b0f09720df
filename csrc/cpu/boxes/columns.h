// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "../../math/box.h"
#include "../common/buffer.h"

namespace detops::cpu {

// Boxes as a structure of arrays, with their areas and one more number of each. Behind the last
// there are empty boxes, as many as a vector can reach beyond it.
constexpr int64_t kColumnPadding = 16;

template <typename T>
struct BoxColumns {
  T *x1, *y1, *x2, *y2, *area, *more;

  // At most so many, in some memory; all are empty.
  BoxColumns(Buffer<T>& memory, int64_t most) {
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

}  // namespace detops::cpu
