// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Each function writes what a primitive returns
// for the inputs `a` and `b`, of kInputs elements. A primitive of n elements runs for every n.

#include "../../csrc/cpu/simd/functions.inl"
//
#include "../../csrc/cpu/simd/product.inl"

template <typename T>
int64_t lanes_of() {
  return kLanes<T>;
}

// ---- results in the type that is computed in

template <typename T, typename A>
void run_load(const T* a, const T*, A* out) {
  store(out, load(a));
}

template <typename T, typename A>
void run_load_part(const T* a, const T*, A* out) {
  for (int64_t n = 0; n < kLanes<A>; ++n, out += kLanes<A>) store(out, load_part(a, n));
}

template <typename T, typename A>
void run_load_first(const T* a, const T*, A* out) {
  for (int64_t n = 0; n < kLanes<A> + 3; ++n, out += kLanes<A>) store(out, load_first(a, n));
}

template <typename T, typename A>
void run_load_unzipped(const T* a, const T*, A* out) {
  for (int64_t n = 0; n <= kLanes<A>; ++n, out += 2 * kLanes<A>) {
    Vector<A> first, second;
    load_unzipped(a, n, first, second);
    store(out, first);
    store(out + kLanes<A>, second);
  }
}

template <typename T, typename A>
void run_load_transposed(const T* a, const T*, A* out) {
  constexpr int64_t kStride = kLanes<A> + 3;
  for (int64_t rows : {int64_t(1), kLanes<A> - 1, kLanes<A>}) {
    Vector<A> v[kLanes<A>];
    load_transposed(a, kStride, rows, rows, v);
    for (int64_t i = 0; i < kLanes<A>; ++i, out += kLanes<A>) store(out, v[i]);
  }
}

template <typename A>
void run_splat(const A* a, const A*, A* out) {
  for (int64_t i = 0; i < 16; ++i, out += kLanes<A>) store(out, splat(a[i]));
}

template <typename A>
void run_lane_indices(const A*, const A*, A* out) {
  store(out, __builtin_convertvector(lane_indices<A>(), Vector<A>));
}

template <typename A>
void run_fused(const A* a, const A* b, A* out) {
  store(out, fused(load(a), load(b), load(a + kLanes<A>)));
}

template <typename A>
void run_max(const A* a, const A* b, A* out) {
  store(out, max(load(a), load(b)));
}

template <typename A>
void run_min(const A* a, const A* b, A* out) {
  store(out, min(load(a), load(b)));
}

template <typename A>
void run_greater_bits(const A* a, const A* b, A* out) {
  out[0] = A(greater_bits(load(a), load(b)));
}

template <typename A>
void run_floor(const A* a, const A*, A* out) {
  store(out, floor(load(a)));
}

template <typename A>
void run_reduce_lanes(const A* a, const A*, A* out) {
  store(out, reduce_lanes<A>(load(a), max<Vector<A>>, AllLanes<A>()));
}

template <typename A>
void run_unzip(const A* a, const A* b, A* out) {
  Vector<A> x = load(a), y = load(b);
  unzip<A>(x, y, AllLanes<A>());
  store(out, x);
  store(out + kLanes<A>, y);
}

template <typename A>
void run_zip(const A* a, const A* b, A* out) {
  Vector<A> x = load(a), y = load(b);
  zip<A>(x, y, AllLanes<A>());
  store(out, x);
  store(out + kLanes<A>, y);
}

template <typename A>
DETOPS_INLINE void load_square(const A* a, Vector<A>* v) {
  for (int64_t i = 0; i < kLanes<A>; ++i) v[i] = load(a + i * kLanes<A>);
}

template <typename A>
void run_transpose(const A* a, const A*, A* out) {
  Vector<A> v[kLanes<A>];
  load_square(a, v);
  transpose<A>(v);
  for (int64_t i = 0; i < kLanes<A>; ++i) store(out + i * kLanes<A>, v[i]);
}

template <typename A>
void run_sum_lanes(const A* a, const A*, A* out) {
  out[0] = sum_lanes<A>(load(a));
}

template <typename A>
void run_sum_each(const A* a, const A*, A* out) {
  Vector<A> v[kLanes<A>];
  load_square(a, v);
  store(out, sum_each<A>(v));
}

template <typename A>
void run_sum_lanes_of_four(const A* a, const A*, A* out) {
  Vector<A> v[4];
  for (int64_t i = 0; i < 4; ++i) v[i] = load(a + i * kLanes<A>);
  sum_lanes_of_four<A>(v, out);
}

// Three rows of five with five rows of two vectors, and with five rows of n columns.
template <typename A>
void run_multiply(const A* a, const A* b, A* out) {
  const ProductStrides stride{5, 1, 2 * kLanes<A>};
  {
    Vector<A> sums[3][2] = {};
    multiply<3, 2>(a, b, stride, 5, 2 * kLanes<A>, sums);
    for (int64_t r = 0; r < 3; ++r, out += 2 * kLanes<A>) {
      store(out, sums[r][0]);
      store(out + kLanes<A>, sums[r][1]);
    }
  }
  for (int64_t n = 1; n <= kLanes<A>; ++n) {
    Vector<A> sums[3][1] = {};
    multiply<3, 1>(a, b, stride, 5, n, sums);
    for (int64_t r = 0; r < 3; ++r, out += kLanes<A>) store(out, sums[r][0]);
  }
}

#define DETOPS_RUN_FUNCTION(name)                                                       \
  template <typename A>                                                                 \
  void run_##name(const A* a, const A*, A* out) {                                       \
    for (int64_t i = 0; i < kInputs; i += kLanes<A>) store(out + i, name(load(a + i))); \
  }
DETOPS_RUN_FUNCTION(exp)
DETOPS_RUN_FUNCTION(expm1)
DETOPS_RUN_FUNCTION(tanh)
DETOPS_RUN_FUNCTION(log)
DETOPS_RUN_FUNCTION(log1p)
DETOPS_RUN_FUNCTION(arctangent)

// ---- results in the type that is stored

template <typename A, typename T>
void run_store(const A* a, const A*, T* out) {
  for (int64_t i = 0; i < kInputs; i += kLanes<A>) store(out + i, load(a + i));
}

template <typename A, typename T>
void run_store_part(const A* a, const A*, T* out) {
  for (int64_t n = 0; n < kLanes<A>; ++n, out += kLanes<A>) store_part(out, load(a), n);
}

template <typename A, typename T>
void run_store_first(const A* a, const A*, T* out) {
  for (int64_t n = 0; n < kLanes<A> + 3; ++n, out += kLanes<A>) store_first(out, load(a), n);
}

template <typename A, typename T>
void run_store_zipped(const A* a, const A* b, T* out) {
  for (int64_t n = 0; n <= kLanes<A>; ++n, out += 2 * kLanes<A>) {
    store_zipped(out, n, load(a), load(b));
  }
}

template <typename A, typename T>
void run_store_transposed(const A* a, const A*, T* out) {
  constexpr int64_t kStride = kLanes<A> + 3;
  Vector<A> v[kLanes<A>];
  load_square(a, v);
  store_transposed(out, kStride, kLanes<A> - 1, kLanes<A> - 1, v);
}

template <typename T>
void run_pair(const T* a, const T*, T* out) {
  using A = accumulate_t<T>;
  for (int64_t i = 0; i < kInputs; i += 2 * kLanes<A>) {
    Vector<A> x, y;
    load_pair(a + i, x, y);
    store_pair(out + i, x, y);
  }
}

template <typename T>
void run_transpose_matrix(const T* a, const T*, T* out) {
  transpose_matrix(a, kColumns + 1, kRows, kColumns, out, kRows + 2);
}
