// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

template <typename T>
DETOPS_INLINE math::Box<Vector<T>> load_box(const BoxColumns<T>& b, int64_t i) {
  return {load(b.x1 + i), load(b.y1 + i), load(b.x2 + i), load(b.y2 + i)};
}

template <typename T>
DETOPS_INLINE math::Box<Vector<T>> splat_box(const math::Box<T>& b) {
  return {splat(b.x1), splat(b.y1), splat(b.x2), splat(b.y2)};
}

// The largest of the numbers that each lane has seen and the index of the first of these, or -1;
// `at` are the indices of the next ones.
template <typename T>
struct Largest {
  Vector<T> most;
  Vector<lane_index_t<T>> where, at;
};

template <typename T>
DETOPS_INLINE Largest<T> larger_than(T least) {
  return {splat(least), Vector<lane_index_t<T>>{} - 1, lane_numbers<T>()};
}

template <typename T>
DETOPS_INLINE void take(Largest<T>& largest, Vector<T> x) {
  largest.where = x > largest.most ? largest.at : largest.where;
  largest.most = x > largest.most ? x : largest.most;
}

// The first index of the largest number of all lanes, or -1; `most` becomes that number.
template <typename T>
DETOPS_INLINE int64_t first_of(const Largest<T>& largest, T& most) {
  int64_t first = -1;
  for (int64_t i = 0; i < kLanes<T>; ++i) {
    const int64_t where = largest.where[i];
    const T x = largest.most[i];
    if (where < 0) continue;
    if (first < 0 || x > most || (x == most && where < first)) first = where, most = x;
  }
  return first;
}
