// SPDX-License-Identifier: MIT
// Included once per instruction set, and once more for processors that count bits in vectors; see
// variants.h and mask_iou.cpp.

#include "byte_bits.inl"

// Counts the set bits of each lane.
DETOPS_INLINE Vector<uint64_t> count_bits(Vector<uint64_t> v) {
#if defined(DETOPS_COUNTS_BITS)
  return (Vector<uint64_t>)_mm512_popcnt_epi64((__m512i)v);
#elif defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES >= 32
  // Looks up each half byte in a table of 16 bytes.
  Vector<uint64_t> table{};
  for (int64_t i = 0; i < kLanes<uint64_t>; ++i) {
    table[i] = i % 2 == 0 ? 0x0302020102010100u : 0x0403030203020201u;
  }
  const Vector<uint64_t> low = v & 0x0f0f0f0f0f0f0f0fu, high = (v >> 4) & 0x0f0f0f0f0f0f0f0fu;
#if DETOPS_VECTOR_BYTES == 64
  const __m512i table_bytes = (__m512i)table;
  const __m512i bytes = _mm512_add_epi8(_mm512_shuffle_epi8(table_bytes, (__m512i)low),
                                        _mm512_shuffle_epi8(table_bytes, (__m512i)high));
  return (Vector<uint64_t>)_mm512_sad_epu8(bytes, _mm512_setzero_si512());
#else
  const __m256i table_bytes = (__m256i)table;
  const __m256i bytes = _mm256_add_epi8(_mm256_shuffle_epi8(table_bytes, (__m256i)low),
                                        _mm256_shuffle_epi8(table_bytes, (__m256i)high));
  return (Vector<uint64_t>)_mm256_sad_epu8(bytes, _mm256_setzero_si256());
#endif
#else
  v -= (v >> 1) & 0x5555555555555555u;
  v = (v & 0x3333333333333333u) + ((v >> 2) & 0x3333333333333333u);
  v = (v + (v >> 4)) & 0x0f0f0f0f0f0f0f0fu;
  v += v >> 8;
  v += v >> 16;
  v += v >> 32;
  return v & 0xffu;
#endif
}

// Packs the pixels of a mask into words, with zeros up to a whole vector. Writes the number of set
// pixels of each tile.
void pack_mask(const uint8_t* mask, int64_t pixels, uint64_t* words, int64_t* tile_counts) {
  static constexpr uint8_t kNone[64] = {};
  int64_t word = 0;
  for (int64_t first = 0; first < pixels; first += 64 * kTileWords) {
    int64_t set = 0;
    for (int64_t i = 0; i < kTileWords; ++i, ++word) {
      const int64_t at = 64 * word, left = pixels - at;
      uint64_t bits = 0;
      if (left >= 64) {
        bits = unequal_bits(mask + at, kNone);
      } else if (left > 0) {
        uint8_t rest[64] = {};
        __builtin_memcpy(rest, mask + at, left);
        bits = unequal_bits(rest, kNone);
      } else if (i % kMaskVector == 0) {
        break;
      }
      words[word] = bits;
      set += __builtin_popcountll(bits);
    }
    *tile_counts++ = set;
  }
}

template <int kMasks>
DETOPS_INLINE void add_shared_with(const uint64_t* mask, const MaskTile* others, int64_t words,
                                   int64_t* counts) {
  Vector<uint64_t> sum[kMasks] = {};
  for (int64_t i = 0; i < words; i += kLanes<uint64_t>) {
    const Vector<uint64_t> bits = load_words(mask + i);
    DETOPS_UNROLL for (int k = 0; k < kMasks; ++k) {
      sum[k] += count_bits(bits & load_words(others[k].words + i));
    }
  }
  DETOPS_UNROLL for (int k = 0; k < kMasks; ++k) {
    counts[others[k].index] += static_cast<int64_t>(sum_lanes<uint64_t>(sum[k]));
  }
}

// Adds to counts[index] the number of pixels that a mask shares with each of n others, in the first
// `words` words.
void add_shared_pixels(const uint64_t* mask, const MaskTile* others, int64_t n, int64_t words,
                       int64_t* counts) {
  int64_t k = 0;
  for (; k + 4 <= n; k += 4) add_shared_with<4>(mask, others + k, words, counts);
  for (; k < n; ++k) add_shared_with<1>(mask, others + k, words, counts);
}
