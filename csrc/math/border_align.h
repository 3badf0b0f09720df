// SPDX-License-Identifier: MIT
#pragma once

#include "max_samples.h"

// "BorderDet" (Qiu et al., 2020), section 3.2 (border align).
namespace detops::math {

// Where the samples of a border are: one of the lines has one place, the other all of them.
template <typename T>
struct Border {
  SampleLine<T> rows, cols;

  DETOPS_HD T y(int64_t i) const { return rows.at(rows.count > 1 ? i : 0); }
  DETOPS_HD T x(int64_t i) const { return cols.at(cols.count > 1 ? i : 0); }
};

// Borders are 0 top, 1 left, 2 bottom, 3 right; the first two begin at (x1, y1), the others at
// (x2, y2) and run back. `box` is (x1, y1, x2, y2) in pixels of the map.
template <typename T>
DETOPS_HD Border<T> border_of(const T* box, int64_t border, int64_t pool_size) {
  const bool back = border >= 2, across = border % 2 == 0;
  const T *corner = box + (back ? 2 : 0), size = across ? box[2] - box[0] : box[3] - box[1];
  const T step = (back ? -size : size) / T(pool_size);
  const SampleLine<T> row{corner[1], across ? T(0) : step, across ? 1 : pool_size + 1};
  const SampleLine<T> col{corner[0], across ? step : T(0), across ? pool_size + 1 : 1};
  return {row, col};
}

// The place of sample `i`; one that is none is not on the map.
template <typename T>
DETOPS_HD void border_sample(const T* box, int64_t border, int64_t pool_size, int64_t i, T& y,
                             T& x) {
  y = x = T(kOffMap);
  if (i < 0 || i > pool_size) return;
  const Border<T> samples = border_of(box, border, pool_size);
  y = samples.y(i);
  x = samples.x(i);
}

}  // namespace detops::math
