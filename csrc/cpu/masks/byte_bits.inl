// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Shared by the mask kernels.

DETOPS_INLINE Vector<uint64_t> load_words(const void* p) {
  Vector<uint64_t> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// Compares 64 bytes. Bit i of the result is set if a[i] != b[i].
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
  uint64_t unequal = 0;
  for (int i = 0; i < 64; i += 8) {
    uint64_t x, y;
    __builtin_memcpy(&x, a + i, 8);
    __builtin_memcpy(&y, b + i, 8);
    x ^= y;
    if (x == 0) continue;
    // ORs the bits of each byte into its lowest bit, then packs these bits into one byte.
    x |= x >> 4;
    x |= x >> 2;
    x |= x >> 1;
    unequal |= (((x & 0x0101010101010101u) * 0x0102040810204080u) >> 56) << i;
  }
  return unequal;
#endif
}
