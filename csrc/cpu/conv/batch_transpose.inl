// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

// to[w * height + h] = from[h * width + w], square by square.
template <typename T, typename A = accumulate_t<T>>
void transpose_matrix(const T* from, int64_t height, int64_t width, T* to) {
  constexpr int64_t kSide = kLanes<A>;
  for (int64_t w = 0; w < width; w += kSide) {
    const int64_t columns = width - w < kSide ? width - w : kSide;
    for (int64_t h = 0; h < height; h += kSide) {
      const int64_t rows = height - h < kSide ? height - h : kSide;
      const T* square = from + h * width + w;
      T* turned = to + w * height + h;
      // The last of 7 x 7 pixels costs less by itself than a square would.
      if (rows == 1) {
        for (int64_t c = 0; c < columns; ++c) turned[c * height] = square[c];
        continue;
      }
      Vector<A> v[kSide];
      load_turned(square, width, rows, columns, v);
      DETOPS_UNROLL for (int64_t c = 0; c < kSide; ++c) {
        if (c < columns) store_first(turned + c * height, v[c], rows);
      }
    }
  }
}
