// SPDX-License-Identifier: MIT
// Included once per instruction set, inside its target region and namespace, with
// DETOPS_VECTOR_BYTES set. Vectors use the vector extension of the compilers: plain arithmetic, one
// instruction each. Every function is force-inlined, because instruction sets have no common ABI
// for vector arguments.

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
DETOPS_INLINE Vector<lane_index_t<T>> lane_indices(Lanes<I...>) {
  return Vector<lane_index_t<T>>{I...};
}
template <typename T>
DETOPS_INLINE Vector<lane_index_t<T>> lane_indices() {
  return lane_indices<T>(AllLanes<T>());
}

#include "memory.inl"

template <typename A>
DETOPS_INLINE Vector<A> splat(A x) {
  return x - Vector<A>{};  // not x + 0: that would turn -0 into +0
}

// Returns a b + c, fused if the instruction set supports it. Use only where no decision depends on
// the rounding.
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

// Picks lanes I from the lanes of `a` followed by those of `b`.
template <typename T, int... I>
DETOPS_INLINE Vector<T> shuffle(Vector<T> a, Vector<T> b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, I...);
#else
  return __builtin_shuffle(a, b, Vector<lane_index_t<T>>{I...});
#endif
}

// Reduces all lanes with a binary operation, in log2(kLanes) steps. Every lane holds the result.
template <typename T, int kStep = kLanes<T> / 2, typename Op, int... I>
DETOPS_INLINE Vector<T> reduce_lanes(Vector<T> v, const Op& op, Lanes<I...> lanes) {
  const Vector<T> halves = op(v, shuffle<T, ((I & kStep) ? I - kStep : I + kStep)...>(v, v));
  if constexpr (kStep == 1)
    return halves;
  else
    return reduce_lanes<T, kStep / 2>(halves, op, lanes);
}

// One step of a transpose: swaps the lanes of `a` whose index has the bit kStep with the lanes of
// `b` whose index lacks it.
template <int kStep, typename T, int... I>
DETOPS_INLINE void exchange(Vector<T>& a, Vector<T>& b, Lanes<I...>) {
  constexpr int kWidth = kLanes<T>;
  const Vector<T> low = shuffle<T, ((I & kStep) ? kWidth + I - kStep : I)...>(a, b);
  b = shuffle<T, ((I & kStep) ? kWidth + I : I + kStep)...>(a, b);
  a = low;
}

// unzip splits pairs a0 b0 a1 b1 ... into a0 a1 ... and b0 b1 ...; zip is the reverse.
template <typename T, int... I>
DETOPS_INLINE void unzip(Vector<T>& a, Vector<T>& b, Lanes<I...>) {
  const Vector<T> first = shuffle<T, 2 * I...>(a, b);
  b = shuffle<T, (2 * I + 1)...>(a, b);
  a = first;
}

template <typename T, int... I>
DETOPS_INLINE void zip(Vector<T>& a, Vector<T>& b, Lanes<I...>) {
  constexpr int kWidth = kLanes<T>;
  const Vector<T> low = shuffle<T, (I / 2 + I % 2 * kWidth)...>(a, b);
  b = shuffle<T, (kWidth / 2 + I / 2 + I % 2 * kWidth)...>(a, b);
  a = low;
}

// Transposes a square of kLanes<T> vectors.
template <typename T, int kStep = 1>
DETOPS_INLINE void transpose(Vector<T>* v) {
  if constexpr (kStep < kLanes<T>) {
    DETOPS_UNROLL for (int i = 0; i < kLanes<T>; ++i) {
      if (!(i & kStep)) exchange<kStep, T>(v[i], v[i + kStep], AllLanes<T>());
    }
    transpose<T, 2 * kStep>(v);
  }
}

// Loads and transposes a square of a matrix, or the part of one at its edges: `rows` rows of `n`
// elements, with row stride `stride`. A vector holds one element of each row.
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void load_transposed(const T* from, int64_t stride, int64_t rows, int64_t n,
                                   Vector<A>* v) {
  for (int64_t r = 0; r < kLanes<A>; ++r) {
    v[r] = r < rows ? load_first(from + r * stride, n) : Vector<A>{};
  }
  transpose<A>(v);
}

template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void store_transposed(T* to, int64_t stride, int64_t rows, int64_t n, Vector<A>* v) {
  transpose<A>(v);
  for (int64_t r = 0; r < rows; ++r) store_first(to + r * stride, v[r], n);
}

// to[w, h] = from[h, w], square by square. `from_stride` and `to_stride` are the row strides.
template <typename T, typename A = accumulate_t<T>>
void transpose_matrix(const T* from, int64_t from_stride, int64_t height, int64_t width, T* to,
                      int64_t to_stride) {
  constexpr int64_t kSide = kLanes<A>;
  for (int64_t w = 0; w < width; w += kSide) {
    const int64_t columns = width - w < kSide ? width - w : kSide;
    for (int64_t h = 0; h < height; h += kSide) {
      const int64_t rows = height - h < kSide ? height - h : kSide;
      const T* square = from + h * from_stride + w;
      T* transposed = to + w * to_stride + h;
      // A single row, such as the last of 7 x 7 pixels, costs less without a square.
      if (rows == 1) {
        for (int64_t c = 0; c < columns; ++c) transposed[c * to_stride] = square[c];
        continue;
      }
      Vector<A> v[kSide];
      load_transposed(square, from_stride, rows, columns, v);
      DETOPS_UNROLL for (int64_t c = 0; c < kSide; ++c) {
        if (c < columns) store_first(transposed + c * to_stride, v[c], rows);
      }
    }
  }
}

// Loads n interleaved pairs, at most one per lane: first elements into `a`, second into `b`.
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

// Adds to each lane the one whose index differs in the bit kStep, if there is such a lane.
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

// Returns the sum of the lanes of v[i] in lane i. There are as many vectors as lanes. Overwrites v.
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

// Sums the lanes of each of four vectors. Overwrites v. The four sums share half of the steps.
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

// Returns one bit per lane: a > b.
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

// For values that an integer of the same width can hold.
template <typename V>
DETOPS_INLINE V floor(V x) {
  using T = std::remove_reference_t<decltype(x[0])>;
  const V toward_zero =
      __builtin_convertvector(__builtin_convertvector(x, Vector<lane_index_t<T>>), V);
  return toward_zero > x ? toward_zero - T(1) : toward_zero;
}
