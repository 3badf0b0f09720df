// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Reads only as much of a mask as determines its
// box: rows from both ends and then, in the rows between, the pixels outside the columns found so
// far.

#include "byte_bits.inl"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first byte is the lowest");

DETOPS_INLINE uint64_t load_word(const uint8_t* p, int64_t n = 8) {
  uint64_t word = 0;
  __builtin_memcpy(&word, p, n);
  return word;
}

DETOPS_INLINE bool any_bit(Vector<uint64_t> v) {
#if defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 64
  return _mm512_test_epi64_mask((__m512i)v, (__m512i)v) != 0;
#elif defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 32
  return !_mm256_testz_si256((__m256i)v, (__m256i)v);
#elif defined(DETOPS_X86_TARGETS)
  return _mm_movemask_epi8(_mm_cmpeq_epi8((__m128i)v, _mm_setzero_si128())) != 0xffff;
#else
  uint64_t bits = 0;
  for (int64_t i = 0; i < kLanes<uint64_t>; ++i) bits |= v[i];
  return bits != 0;
#endif
}

// Returns the position of the first set byte in n bytes of whole elements, or n if none is set.
DETOPS_INLINE int64_t first_set(const uint8_t* p, int64_t n, uint64_t bits) {
  int64_t i = 0;
  while (i + DETOPS_VECTOR_BYTES <= n && !any_bit(load_words(p + i) & bits)) {
    i += DETOPS_VECTOR_BYTES;
  }
  for (; i + 8 <= n; i += 8) {
    const uint64_t word = load_word(p + i) & bits;
    if (word) return i + __builtin_ctzll(word) / 8;
  }
  // The last word may overlap bytes already found to be zero.
  i = n < 8 ? 0 : n - 8;
  const uint64_t word = load_word(p + i, n - i) & bits;
  return word ? i + __builtin_ctzll(word) / 8 : n;
}

// Returns the position of the last set byte in n bytes of whole elements, or -1 if none is set.
DETOPS_INLINE int64_t last_set(const uint8_t* p, int64_t n, uint64_t bits) {
  int64_t end = n;
  while (end >= DETOPS_VECTOR_BYTES && !any_bit(load_words(p + end - DETOPS_VECTOR_BYTES) & bits)) {
    end -= DETOPS_VECTOR_BYTES;
  }
  for (; end >= 8; end -= 8) {
    const uint64_t word = load_word(p + end - 8) & bits;
    if (word) return end - 1 - __builtin_clzll(word) / 8;
  }
  const uint64_t word = load_word(p, n < 8 ? n : 8) & bits;
  return word ? 7 - __builtin_clzll(word) / 8 : -1;
}

// Writes the first column and row with a set element, then the last ones, or zeros if there is
// none. Elements have `size` bytes. `bits` selects the bits that make one nonzero.
void find_box(const uint8_t* mask, int64_t height, int64_t row_bytes, int64_t size, uint64_t bits,
              float* box) {
  const int64_t bytes = height * row_bytes, first = first_set(mask, bytes, bits);
  for (int i = 0; i < 4; ++i) box[i] = 0;
  if (first == bytes) return;
  const int64_t last = last_set(mask, bytes, bits);
  const int64_t top = first / row_bytes, bottom = last / row_bytes;
  int64_t left = first % row_bytes / size, right = last % row_bytes / size;
  for (int64_t y = top; y <= bottom; ++y) {
    const uint8_t* row = mask + y * row_bytes;
    left = first_set(row, left * size, bits) / size;
    const int64_t begin = (right + 1) * size;
    right += (last_set(row + begin, row_bytes - begin, bits) + size) / size;
  }
  const int64_t sides[] = {left, top, right, bottom};
  for (int i = 0; i < 4; ++i) box[i] = float(sides[i]);
}
