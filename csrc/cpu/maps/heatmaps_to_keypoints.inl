// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. No fused multiply-adds: rounding decides which
// pixel is the largest.

// Computes a row of pixels from four resized rows of cells. Returns the largest, or NaN if there
// is one.
template <typename T>
T resize_rows(const T* const* rows, const T* weights, int64_t count, T* pixels) {
  const Vector<T> w[4] = {splat(weights[0]), splat(weights[1]), splat(weights[2]),
                          splat(weights[3])};
  Vector<T> best = splat<T>(-T(__builtin_inf()));
  for (int64_t x = 0; x < count; x += kLanes<T>) {
    const int64_t n = count - x;
    const Vector<T> v = ((load_first(rows[0] + x, n) * w[0] + load_first(rows[1] + x, n) * w[1]) +
                         load_first(rows[2] + x, n) * w[2]) +
                        load_first(rows[3] + x, n) * w[3];
    store_first(pixels + x, v, n);
    if (n < kLanes<T>) break;
    best = ((v > best) | (v != v)) ? v : best;
  }
  T lanes[kLanes<T>];
  store(lanes, best);
  T largest = lanes[0];
  const auto take = [&](T v) {
    if (v > largest || v != v) largest = v;
  };
  for (int64_t i = 1; i < kLanes<T>; ++i) take(lanes[i]);
  for (int64_t x = count / kLanes<T> * kLanes<T>; x < count; ++x) take(pixels[x]);
  return largest;
}

// Resizes a row of cells to a row of pixels.
// `cell` and `weight` hold the taps of all pixels, [4, count].
template <typename T>
void resize_columns(const T* __restrict cells, const int32_t* __restrict cell,
                    const T* __restrict weight, int64_t count, T* __restrict pixels) {
  for (int64_t x = 0; x < count; ++x) {
    pixels[x] = ((cells[cell[x]] * weight[x] + cells[cell[count + x]] * weight[count + x]) +
                 cells[cell[2 * count + x]] * weight[2 * count + x]) +
                cells[cell[3 * count + x]] * weight[3 * count + x];
  }
}
