// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

// One bit per byte: a != b.
DETOPS_INLINE uint64_t unequal_bits(const uint8_t* a, const uint8_t* b) {
#if defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 64
  return _mm512_cmpneq_epi8_mask(_mm512_loadu_si512(a), _mm512_loadu_si512(b));
#elif defined(DETOPS_X86_TARGETS)
  uint64_t equal = 0;
  DETOPS_UNROLL for (int i = 0; i < 64; i += DETOPS_VECTOR_BYTES) {
#if DETOPS_VECTOR_BYTES == 32
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i));
    const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i));
    equal |= uint64_t(uint32_t(_mm256_movemask_epi8(_mm256_cmpeq_epi8(x, y)))) << i;
#else
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i));
    const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + i));
    equal |= uint64_t(uint32_t(_mm_movemask_epi8(_mm_cmpeq_epi8(x, y)))) << i;
#endif
  }
  return ~equal;
#else
  if (__builtin_memcmp(a, b, 64) == 0) return 0;
  uint64_t unequal = 0;
  for (int i = 0; i < 64; ++i) unequal |= uint64_t(a[i] != b[i]) << i;
  return unequal;
#endif
}

DETOPS_INLINE int64_t list_bits(uint64_t bits, int64_t first, uint32_t* list) {
  int64_t count = 0;
  for (; bits; bits &= bits - 1) {
    list[count++] = static_cast<uint32_t>(first + __builtin_ctzll(bits));
  }
  return count;
}

// Lists every i in [0, n) with a[i] != b[i], ascending; returns how many there are.
int64_t differences(const uint8_t* a, const uint8_t* b, int64_t n, uint32_t* list) {
  int64_t count = 0, i = 0;
  for (; i + 64 <= n; i += 64) count += list_bits(unequal_bits(a + i, b + i), i, list + count);
  const int64_t rest = n - i;
  if (rest == 0) return count;
  if (n >= 64) {  // a block that begins among bytes already compared
    const uint64_t bits = unequal_bits(a + n - 64, b + n - 64) >> (64 - rest);
    return count + list_bits(bits, i, list + count);
  }
  uint8_t last_a[64] = {}, last_b[64] = {};
  __builtin_memcpy(last_a, a, rest);
  __builtin_memcpy(last_b, b, rest);
  return count + list_bits(unequal_bits(last_a, last_b), 0, list + count);
}
