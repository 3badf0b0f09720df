// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "byte_bits.inl"

DETOPS_INLINE int64_t list_bits(uint64_t bits, int64_t first, uint32_t* list) {
  int64_t count = 0;
  for (; bits; bits &= bits - 1) {
    list[count++] = static_cast<uint32_t>(first + __builtin_ctzll(bits));
  }
  return count;
}

// Lists every i in [0, n) with a[i] != b[i] in ascending order. Returns how many there are.
int64_t differences(const uint8_t* a, const uint8_t* b, int64_t n, uint32_t* list) {
  int64_t count = 0, i = 0;
  for (; i + 64 <= n; i += 64) count += list_bits(unequal_bits(a + i, b + i), i, list + count);
  const int64_t rest = n - i;
  if (rest == 0) return count;
  if (n >= 64) {  // the last block overlaps bytes already compared
    const uint64_t bits = unequal_bits(a + n - 64, b + n - 64) >> (64 - rest);
    return count + list_bits(bits, i, list + count);
  }
  uint8_t last_a[64] = {}, last_b[64] = {};
  __builtin_memcpy(last_a, a, rest);
  __builtin_memcpy(last_b, b, rest);
  return count + list_bits(unequal_bits(last_a, last_b), 0, list + count);
}
