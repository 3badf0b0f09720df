// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Squares of a matrix, as many rows and columns
// as a vector has lanes, or what is left of them at its edges.

// `rows` lines of `n` elements, turned so that a vector has one of each line.
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void load_turned(const T* from, int64_t length, int64_t rows, int64_t n,
                               Vector<A>* v) {
  for (int64_t r = 0; r < kLanes<A>; ++r) {
    v[r] = r < rows ? load_first(from + r * length, n) : Vector<A>{};
  }
  transpose<A>(v);
}

template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void store_turned(T* to, int64_t length, int64_t rows, int64_t n, Vector<A>* v) {
  transpose<A>(v);
  for (int64_t r = 0; r < rows; ++r) store_first(to + r * length, v[r], n);
}
