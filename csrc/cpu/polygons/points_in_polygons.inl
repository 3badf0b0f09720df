// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../../math/points_in_polygons.inl"

typedef int8_t Flags __attribute__((vector_size(kLanes<double>)));

// Writes a row of `out` for each of `count` points: a flag for each of m quadrilaterals. `corners`
// has eight columns with stride `stride`, and room for a vector after the last corner.
template <typename T>
void points_in_polygons_rows(const T* points, int64_t count, const double* corners, int64_t stride,
                             int64_t m, bool* out) {
  for (int64_t i = 0; i < count; ++i) {
    const Vector<double> x = splat(double(points[2 * i])), y = splat(double(points[2 * i + 1]));
    bool* row = out + i * m;
    for (int64_t j = 0; j < m; j += kLanes<double>) {
      Vector<double> xs[4], ys[4];
      DETOPS_UNROLL for (int64_t c = 0; c < 4; ++c) {
        xs[c] = load(corners + c * stride + j);
        ys[c] = load(corners + (4 + c) * stride + j);
      }
      const Flags flags = __builtin_convertvector(inside::within(x, y, xs, ys), Flags) & 1;
      const int64_t n = m - j < kLanes<double> ? m - j : kLanes<double>;
      if (n == kLanes<double>) {
        __builtin_memcpy(row + j, &flags, kLanes<double>);
      } else {
        for (int64_t k = 0; k < n; ++k) row[j + k] = flags[k] != 0;
      }
    }
  }
}
