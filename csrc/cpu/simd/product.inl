// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

// Strides of the left matrix in both dimensions, and between rows of the right one.
struct ProductStrides {
  int64_t left_row, left_depth, right_row;
};

// acc[r] += row r of `left` times `right`, for kRows rows and kVectors vectors of columns. A single
// vector may have only its first `n` columns.
template <int kRows, int kVectors, typename T>
DETOPS_INLINE void multiply(const T* left, const T* right, const ProductStrides& stride,
                            int64_t depth, int64_t n, Vector<T> (&acc)[kRows][kVectors]) {
  for (int64_t k = 0; k < depth; ++k) {
    const T* row = right + k * stride.right_row;
    Vector<T> w[kVectors];
    DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) {
      w[v] = kVectors > 1 ? load(row + v * kLanes<T>) : load_first(row, n);
    }
    DETOPS_UNROLL for (int r = 0; r < kRows; ++r) {
      const Vector<T> x = splat(left[r * stride.left_row + k * stride.left_depth]);
      DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) acc[r][v] = fused(x, w[v], acc[r][v]);
    }
  }
}
