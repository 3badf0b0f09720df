// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Only as much of a mask is read as decides its
// box: rows from both ends, then, in the rows between, what lies outside the columns found so far.

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first byte is the lowest");

DETOPS_INLINE Vector<uint64_t> load_words(const uint8_t* p) {
  Vector<uint64_t> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

DETOPS_INLINE uint64_t load_word(const uint8_t* p, int64_t n = 8) {
  uint64_t word = 0;
  __builtin_memcpy(&word, p, n);
  return word;
}

// The first of n bytes, whole elements, that is set; or n.
DETOPS_INLINE int64_t first_set(const uint8_t* p, int64_t n, uint64_t bits) {
  int64_t i = 0;
  while (i + DETOPS_VECTOR_BYTES <= n && !any_bit(load_words(p + i) & bits)) {
    i += DETOPS_VECTOR_BYTES;
  }
  for (; i + 8 <= n; i += 8) {
    const uint64_t word = load_word(p + i) & bits;
    if (word) return i + __builtin_ctzll(word) / 8;
  }
  // The last word may begin among bytes that are known to be zero.
  i = n < 8 ? 0 : n - 8;
  const uint64_t word = load_word(p + i, n - i) & bits;
  return word ? i + __builtin_ctzll(word) / 8 : n;
}

// The last of n bytes, whole elements, that is set; or -1.
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

// False for a mask that is zero all over.
bool mask_extent(const MaskParams& p, const uint8_t* mask, MaskExtent& extent) {
  const int64_t size = p.element_size, row_bytes = p.width * size, bytes = p.height * row_bytes;
  const int64_t first = first_set(mask, bytes, p.bits);
  if (first == bytes) return false;
  const int64_t last = last_set(mask, bytes, p.bits);
  MaskExtent e{first % row_bytes / size, first / row_bytes, last % row_bytes / size,
               last / row_bytes};
  for (int64_t y = e.y1; y <= e.y2; ++y) {
    const uint8_t* row = mask + y * row_bytes;
    e.x1 = first_set(row, e.x1 * size, p.bits) / size;
    const int64_t right = (e.x2 + 1) * size;
    e.x2 += (last_set(row + right, row_bytes - right, p.bits) + size) / size;
  }
  extent = e;
  return true;
}
