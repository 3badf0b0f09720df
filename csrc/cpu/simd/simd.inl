// SPDX-License-Identifier: MIT
// Included once per instruction set, inside its target region and namespace, with
// DETOPS_VECTOR_BYTES set. Vectors are the compilers' vector extension: plain arithmetic, one
// instruction each. Everything is force-inlined, since a vector argument has no common ABI.

#define DETOPS_INLINE static inline __attribute__((always_inline))

template <typename T>
struct VectorOf {
  typedef T type __attribute__((vector_size(DETOPS_VECTOR_BYTES)));
};
template <typename T>
using Vector = typename VectorOf<T>::type;

template <typename T>
constexpr int64_t kLanes = DETOPS_VECTOR_BYTES / sizeof(T);

template <int... I>
using Lanes = std::integer_sequence<int, I...>;
template <typename T>
using AllLanes = std::make_integer_sequence<int, kLanes<T>>;

// 0, 1, 2, ...
template <typename T, int... I>
DETOPS_INLINE Vector<lane_index_t<T>> lane_numbers(Lanes<I...>) {
  return Vector<lane_index_t<T>>{I...};
}
template <typename T>
DETOPS_INLINE Vector<lane_index_t<T>> lane_numbers() {
  return lane_numbers<T>(AllLanes<T>());
}

#include "memory.inl"

template <typename A>
DETOPS_INLINE Vector<A> splat(A x) {
  return x - Vector<A>{};  // not x + 0: that would turn -0 into +0
}

// a b + c, fused where the instruction set can: only where no decision hangs on the rounding.
template <typename V>
DETOPS_INLINE V fused(V a, V b, V c) {
#if defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 64
  if constexpr (sizeof(a[0]) == 4) return _mm512_fmadd_ps(a, b, c);
  if constexpr (sizeof(a[0]) == 8) return _mm512_fmadd_pd(a, b, c);
#elif defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 32
  if constexpr (sizeof(a[0]) == 4) return _mm256_fmadd_ps(a, b, c);
  if constexpr (sizeof(a[0]) == 8) return _mm256_fmadd_pd(a, b, c);
#endif
  return a * b + c;
}

// The lanes I of `a` followed by `b`.
template <typename T, int... I>
DETOPS_INLINE Vector<T> pick(Vector<T> a, Vector<T> b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, I...);
#else
  return __builtin_shuffle(a, b, Vector<lane_index_t<T>>{I...});
#endif
}

// All lanes by an operation on two vectors, half of what is left at a time: in each lane.
template <typename T, int kStep = kLanes<T> / 2, typename Join, int... I>
DETOPS_INLINE Vector<T> joined(Vector<T> v, const Join& join, Lanes<I...> lanes) {
  const Vector<T> halves = join(v, pick<T, ((I & kStep) ? I - kStep : I + kStep)...>(v, v));
  if constexpr (kStep == 1)
    return halves;
  else
    return joined<T, kStep / 2>(halves, join, lanes);
}

// One step of a transpose: lanes whose number has the bit kStep change places between two vectors.
template <int kStep, typename T, int... I>
DETOPS_INLINE void exchange(Vector<T>& a, Vector<T>& b, Lanes<I...>) {
  constexpr int kWidth = kLanes<T>;
  const Vector<T> low = pick<T, ((I & kStep) ? kWidth + I - kStep : I)...>(a, b);
  b = pick<T, ((I & kStep) ? kWidth + I : I + kStep)...>(a, b);
  a = low;
}

// Neighbouring pairs a0 b0 a1 b1 ... to a0 a1 ... and b0 b1 ..., and the reverse.
template <typename T, int... I>
DETOPS_INLINE void unzip(Vector<T>& a, Vector<T>& b, Lanes<I...>) {
  const Vector<T> first = pick<T, 2 * I...>(a, b);
  b = pick<T, (2 * I + 1)...>(a, b);
  a = first;
}

template <typename T, int... I>
DETOPS_INLINE void zip(Vector<T>& a, Vector<T>& b, Lanes<I...>) {
  constexpr int kWidth = kLanes<T>;
  const Vector<T> low = pick<T, (I / 2 + I % 2 * kWidth)...>(a, b);
  b = pick<T, (kWidth / 2 + I / 2 + I % 2 * kWidth)...>(a, b);
  a = low;
}

// A square of kLanes<T> vectors.
template <typename T, int kStep = 1>
DETOPS_INLINE void transpose(Vector<T>* v) {
  if constexpr (kStep < kLanes<T>) {
    DETOPS_UNROLL for (int i = 0; i < kLanes<T>; ++i) {
      if (!(i & kStep)) exchange<kStep, T>(v[i], v[i + kStep], AllLanes<T>());
    }
    transpose<T, 2 * kStep>(v);
  }
}

// A square of a matrix, or what is left of one at its edges: `rows` lines of `n` elements, turned
// so that a vector has one of each line.
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

// to[w, h] = from[h, w], square by square, each with the distance of its rows.
template <typename T, typename A = accumulate_t<T>>
void transpose_matrix(const T* from, int64_t from_row, int64_t height, int64_t width, T* to,
                      int64_t to_row) {
  constexpr int64_t kSide = kLanes<A>;
  for (int64_t w = 0; w < width; w += kSide) {
    const int64_t columns = width - w < kSide ? width - w : kSide;
    for (int64_t h = 0; h < height; h += kSide) {
      const int64_t rows = height - h < kSide ? height - h : kSide;
      const T* square = from + h * from_row + w;
      T* turned = to + w * to_row + h;
      // The last of 7 x 7 pixels costs less by itself than a square would.
      if (rows == 1) {
        for (int64_t c = 0; c < columns; ++c) turned[c * to_row] = square[c];
        continue;
      }
      Vector<A> v[kSide];
      load_turned(square, from_row, rows, columns, v);
      DETOPS_UNROLL for (int64_t c = 0; c < kSide; ++c) {
        if (c < columns) store_first(turned + c * to_row, v[c], rows);
      }
    }
  }
}

// n pairs of neighbours, or as many as a vector has lanes: the first of each, and the second.
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void load_unzipped(const T* p, int64_t n, Vector<A>& a, Vector<A>& b) {
  a = load_first(p, 2 * n);
  b = 2 * n > kLanes<A> ? load_first(p + kLanes<A>, 2 * n - kLanes<A>) : Vector<A>{};
  unzip<A>(a, b, AllLanes<A>());
}

template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void store_zipped(T* p, int64_t n, Vector<A> a, Vector<A> b) {
  zip<A>(a, b, AllLanes<A>());
  store_first(p, a, 2 * n);
  if (2 * n > kLanes<A>) store_first(p + kLanes<A>, b, 2 * n - kLanes<A>);
}

// Adds to each lane the one that is kStep from it, if there is one.
template <int kStep, typename T>
DETOPS_INLINE Vector<T> fold(Vector<T> v) {
  if constexpr (kStep < kLanes<T>) {
    Vector<T> other = v;
    exchange<kStep, T>(v, other, AllLanes<T>());
    v += other;
  }
  return v;
}

template <typename T, int kStep = kLanes<T> / 2>
DETOPS_INLINE T sum_lanes(Vector<T> v) {
  if constexpr (kStep > 0) return sum_lanes<T, kStep / 2>(fold<kStep, T>(v));
  return v[0];
}

// Lane i of the result is the sum over v[i]; there are as many vectors as lanes, and they are lost.
template <typename T, int kStep = 1>
DETOPS_INLINE Vector<T> sum_each(Vector<T>* v) {
  if constexpr (kStep < kLanes<T>) {
    DETOPS_UNROLL for (int i = 0; i < kLanes<T> / (2 * kStep); ++i) {
      Vector<T> a = v[2 * i], b = v[2 * i + 1];
      exchange<kStep, T>(a, b, AllLanes<T>());
      v[i] = a + b;
    }
    return sum_each<T, 2 * kStep>(v);
  }
  return v[0];
}

// The sums of the lanes of four vectors, which are used up. Half the steps of a sum serve all.
template <typename T>
DETOPS_INLINE void sum_lanes_of_four(Vector<T>* v, T* sums) {
  if constexpr (kLanes<T> < 4) {
    for (int j = 0; j < 4; ++j) sums[j] = sum_lanes<T>(v[j]);
  } else {
    exchange<1, T>(v[0], v[1], AllLanes<T>());
    exchange<1, T>(v[2], v[3], AllLanes<T>());
    Vector<T> even = v[0] + v[1], odd = v[2] + v[3];
    exchange<2, T>(even, odd, AllLanes<T>());
    const Vector<T> sum = fold<8, T>(fold<4, T>(even + odd));
    for (int j = 0; j < 4; ++j) sums[j] = sum[j];
  }
}

template <typename V>
DETOPS_INLINE V max(V a, V b) {
  return a < b ? b : a;
}

template <typename V>
DETOPS_INLINE V min(V a, V b) {
  return b < a ? b : a;
}

// One bit per lane: a > b.
template <typename V>
DETOPS_INLINE uint32_t greater_bits(V a, V b) {
  uint32_t bits = 0;
#if defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 64
  if constexpr (sizeof(a[0]) == 4) bits = _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
  if constexpr (sizeof(a[0]) == 8) bits = _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ);
#elif defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 32
  if constexpr (sizeof(a[0]) == 4) bits = _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
  if constexpr (sizeof(a[0]) == 8) bits = _mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_GT_OQ));
#elif defined(DETOPS_X86_TARGETS)
  if constexpr (sizeof(a[0]) == 4) bits = _mm_movemask_ps(_mm_cmpgt_ps(a, b));
  if constexpr (sizeof(a[0]) == 8) bits = _mm_movemask_pd(_mm_cmpgt_pd(a, b));
#else
  constexpr int64_t kCount = sizeof(a) / sizeof(a[0]);
  for (int64_t i = 0; i < kCount; ++i) bits |= uint32_t(a[i] > b[i]) << i;
#endif
  return bits;
}

// For numbers that an integer of their width holds.
template <typename V>
DETOPS_INLINE V floor(V x) {
  using T = std::remove_reference_t<decltype(x[0])>;
  const V toward_zero =
      __builtin_convertvector(__builtin_convertvector(x, Vector<lane_index_t<T>>), V);
  return toward_zero > x ? toward_zero - T(1) : toward_zero;
}
