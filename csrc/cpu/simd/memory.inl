// SPDX-License-Identifier: MIT
// Part of simd.inl: loads and stores.

typedef uint16_t Bits16 __attribute__((vector_size(DETOPS_VECTOR_BYTES / 2)));

template <typename T>
DETOPS_INLINE auto load(const T* p) {
  Vector<T> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

DETOPS_INLINE Vector<float> load(const BFloat16* p) {
  Bits16 bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  const Vector<uint32_t> wide = __builtin_convertvector(bits, Vector<uint32_t>) << 16;
  return (Vector<float>)wide;
}

DETOPS_INLINE Vector<float> load(const Half* p) {
#if defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 64
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 32
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  Vector<float> v;
  for (int64_t i = 0; i < kLanes<float>; ++i) v[i] = math::to_float(p[i]);
  return v;
#endif
}

DETOPS_INLINE void store(float* p, Vector<float> v) { __builtin_memcpy(p, &v, sizeof v); }
DETOPS_INLINE void store(double* p, Vector<double> v) { __builtin_memcpy(p, &v, sizeof v); }
DETOPS_INLINE void store(int32_t* p, Vector<int32_t> v) { __builtin_memcpy(p, &v, sizeof v); }
DETOPS_INLINE void store(int64_t* p, Vector<int64_t> v) { __builtin_memcpy(p, &v, sizeof v); }

// Rounds to nearest, ties to even. The result is in the lower half of each lane.
DETOPS_INLINE Vector<uint32_t> bfloat16_bits(Vector<float> v) {
  const Vector<uint32_t> u = (Vector<uint32_t>)v;
  const Vector<uint32_t> rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return v != v ? rounded - rounded + 0x7fc0u : rounded;
}

DETOPS_INLINE void store(BFloat16* p, Vector<float> v) {
  const Bits16 bits = __builtin_convertvector(bfloat16_bits(v), Bits16);
  __builtin_memcpy(p, &bits, sizeof bits);
}

DETOPS_INLINE void store(Half* p, Vector<float> v) {
#if defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 64
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 32
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int64_t i = 0; i < kLanes<float>; ++i) math::from_float(v[i], p[i]);
#endif
}

#if defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 32
template <typename T>
DETOPS_INLINE __m256i first_lanes(int64_t n) {
  return (__m256i)(lane_indices<T>() < static_cast<lane_index_t<T>>(n));
}
#endif

// Loads the first n <= 8 elements of 16 bits. They are combined in registers, because loading a
// vector from parts that have just been stored would stall.
template <typename T>
DETOPS_INLINE Vector<float> load_part_16bit(const T* p, int64_t n) {
  if (n == 8) return load(p);
  const T* end = p + n;
  uint16_t one = 0;
  uint32_t two = 0;
  if (n & 1) __builtin_memcpy(&one, end -= 1, sizeof one);
  if (n & 2) __builtin_memcpy(&two, end -= 2, sizeof two);
  uint64_t first = n & 2 ? uint64_t(one) << 32 | two : one, second = 0;
  if (n & 4) {
    second = first;
    __builtin_memcpy(&first, p, sizeof first);
  }
  typedef uint64_t Words __attribute__((vector_size(16)));
  const Words words = {first, second};
  T all[8];
  __builtin_memcpy(all, &words, sizeof all);
  return load(all);
}

// Loads the first n <= kLanes elements; the other lanes are 0. store_part writes only the first n.
// Masked accesses touch no other elements and need no buffer in memory.
template <typename T>
DETOPS_INLINE Vector<accumulate_t<T>> load_part(const T* p, int64_t n) {
#if defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 64
  [[maybe_unused]] const uint32_t first = (1u << n) - 1;
  if constexpr (std::is_same_v<T, float>) return _mm512_maskz_loadu_ps(__mmask16(first), p);
  if constexpr (std::is_same_v<T, double>) return _mm512_maskz_loadu_pd(__mmask8(first), p);
  if constexpr (sizeof(T) == 2) {
    T all[kLanes<float>];
    _mm256_storeu_epi16(all, _mm256_maskz_loadu_epi16(__mmask16(first), p));
    return load(all);
  }
#elif defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 32
  if constexpr (std::is_same_v<T, float>) return _mm256_maskload_ps(p, first_lanes<T>(n));
  if constexpr (std::is_same_v<T, double>) return _mm256_maskload_pd(p, first_lanes<T>(n));
#endif
  if constexpr (sizeof(T) == 2) return load_part_16bit(p, n);
  T buffer[kLanes<accumulate_t<T>>] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}

template <typename T>
DETOPS_INLINE void store_part(T* p, Vector<accumulate_t<T>> v, int64_t n) {
#if defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 64
  [[maybe_unused]] const uint32_t first = (1u << n) - 1;
  if constexpr (std::is_same_v<T, float>) return _mm512_mask_storeu_ps(p, __mmask16(first), v);
  if constexpr (std::is_same_v<T, double>) return _mm512_mask_storeu_pd(p, __mmask8(first), v);
#elif defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 32
  if constexpr (std::is_same_v<T, float>) return _mm256_maskstore_ps(p, first_lanes<T>(n), v);
  if constexpr (std::is_same_v<T, double>) return _mm256_maskstore_pd(p, first_lanes<T>(n), v);
#endif
  T buffer[kLanes<accumulate_t<T>>];
  store(buffer, v);
#if defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 2) {
    return _mm256_mask_storeu_epi16(p, __mmask16(first), _mm256_loadu_epi16(buffer));
  }
#endif
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}

// Loads the first n elements, or a whole vector if there are as many.
template <typename T>
DETOPS_INLINE Vector<accumulate_t<T>> load_first(const T* p, int64_t n) {
  return n >= kLanes<accumulate_t<T>> ? load(p) : load_part(p, n);
}

template <typename T>
DETOPS_INLINE void store_first(T* p, Vector<accumulate_t<T>> v, int64_t n) {
  if (n >= kLanes<accumulate_t<T>>) {
    store(p, v);
  } else {
    store_part(p, v, n);
  }
}

// Loads two vectors of consecutive elements in an order that store_pair undoes. bfloat16 elements
// are cheapest to widen in place, even ones to `a` and odd ones to `b`.
template <typename T>
DETOPS_INLINE void load_pair(const T* p, Vector<accumulate_t<T>>& a, Vector<accumulate_t<T>>& b) {
  a = load(p);
  b = load(p + kLanes<accumulate_t<T>>);
}

template <typename T>
DETOPS_INLINE void store_pair(T* p, Vector<accumulate_t<T>> a, Vector<accumulate_t<T>> b) {
  store(p, a);
  store(p + kLanes<accumulate_t<T>>, b);
}

DETOPS_INLINE void load_pair(const BFloat16* p, Vector<float>& a, Vector<float>& b) {
  Vector<uint32_t> both;
  __builtin_memcpy(&both, p, sizeof both);
  a = (Vector<float>)(both << 16);
  b = (Vector<float>)(both & 0xffff0000u);
}

DETOPS_INLINE void store_pair(BFloat16* p, Vector<float> a, Vector<float> b) {
  const Vector<uint32_t> both = bfloat16_bits(a) | bfloat16_bits(b) << 16;
  __builtin_memcpy(p, &both, sizeof both);
}
