// SPDX-License-Identifier: MIT
// Included once per instruction set, and once more for processors that count bits in vectors; see
// variants.h and mask_iou.cpp.

// A bit for each of 64 bytes: whether it is set.
DETOPS_INLINE uint64_t set_bits(const uint8_t* p) {
#if defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 64
  const __m512i bytes = _mm512_loadu_si512(p);
  return _mm512_test_epi8_mask(bytes, bytes);
#elif defined(DETOPS_X86_TARGETS)
  uint64_t unset = 0;
  DETOPS_UNROLL for (int i = 0; i < 64; i += DETOPS_VECTOR_BYTES) {
#if DETOPS_VECTOR_BYTES == 32
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i));
    const __m256i zero = _mm256_cmpeq_epi8(x, _mm256_setzero_si256());
    unset |= uint64_t(uint32_t(_mm256_movemask_epi8(zero))) << i;
#else
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i));
    unset |= uint64_t(uint32_t(_mm_movemask_epi8(_mm_cmpeq_epi8(x, _mm_setzero_si128())))) << i;
#endif
  }
  return ~unset;
#else
  uint64_t bits = 0;
  for (int i = 0; i < 64; i += 8) {
    uint64_t bytes;
    __builtin_memcpy(&bytes, p + i, 8);
    // The lowest bit of a byte becomes any of its bits, and these are then moved side by side.
    bytes |= bytes >> 4;
    bytes |= bytes >> 2;
    bytes |= bytes >> 1;
    bits |= (((bytes & 0x0101010101010101u) * 0x0102040810204080u) >> 56) << i;
  }
  return bits;
#endif
}

// How many bits of each lane are set.
DETOPS_INLINE Vector<uint64_t> count_bits(Vector<uint64_t> v) {
#if defined(DETOPS_COUNTS_BITS)
  return (Vector<uint64_t>)_mm512_popcnt_epi64((__m512i)v);
#elif defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES >= 32
  // Of each half byte, from a table of 16 bytes.
  Vector<uint64_t> table{};
  for (int64_t i = 0; i < kLanes<uint64_t>; ++i) {
    table[i] = i % 2 == 0 ? 0x0302020102010100u : 0x0403030203020201u;
  }
  const Vector<uint64_t> low = v & 0x0f0f0f0f0f0f0f0fu, high = (v >> 4) & 0x0f0f0f0f0f0f0f0fu;
#if DETOPS_VECTOR_BYTES == 64
  const __m512i of_table = (__m512i)table;
  const __m512i bytes = _mm512_add_epi8(_mm512_shuffle_epi8(of_table, (__m512i)low),
                                        _mm512_shuffle_epi8(of_table, (__m512i)high));
  return (Vector<uint64_t>)_mm512_sad_epu8(bytes, _mm512_setzero_si512());
#else
  const __m256i of_table = (__m256i)table;
  const __m256i bytes = _mm256_add_epi8(_mm256_shuffle_epi8(of_table, (__m256i)low),
                                        _mm256_shuffle_epi8(of_table, (__m256i)high));
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

DETOPS_INLINE Vector<uint64_t> load_bits(const uint64_t* p) {
  Vector<uint64_t> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

DETOPS_INLINE int64_t sum_of_lanes(Vector<uint64_t> v) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < kLanes<uint64_t>; ++i) sum += v[i];
  return static_cast<int64_t>(sum);
}

// Packs a mask's pixels into words, up to a whole tile; says how many are set in each tile.
void pack_mask(const uint8_t* mask, int64_t pixels, uint64_t* words, int64_t* of_tiles) {
  int64_t word = 0;
  for (int64_t first = 0; first < pixels; first += 64 * kTileWords) {
    int64_t set = 0;
    for (int64_t i = 0; i < kTileWords; ++i, ++word) {
      const int64_t at = 64 * word, left = pixels - at;
      uint64_t bits = 0;
      if (left >= 64) {
        bits = set_bits(mask + at);
      } else if (left > 0) {
        uint8_t rest[64] = {};
        __builtin_memcpy(rest, mask + at, left);
        bits = set_bits(rest);
      } else if (i % kMaskVector == 0) {
        break;
      }
      words[word] = bits;
      set += __builtin_popcountll(bits);
    }
    *of_tiles++ = set;
  }
}

// The pixels that a mask shares with each of some others, in `words` words of each: added to
// counts[index].
void add_shared_pixels(const uint64_t* mask, const MaskTile* others, int64_t n, int64_t words,
                       int64_t* counts) {
  constexpr int64_t kWidth = kLanes<uint64_t>;
  int64_t k = 0;
  for (; k + 4 <= n; k += 4) {
    const MaskTile* o = others + k;
    Vector<uint64_t> a{}, b{}, c{}, d{};
    for (int64_t i = 0; i < words; i += kWidth) {
      const Vector<uint64_t> bits = load_bits(mask + i);
      a += count_bits(bits & load_bits(o[0].words + i));
      b += count_bits(bits & load_bits(o[1].words + i));
      c += count_bits(bits & load_bits(o[2].words + i));
      d += count_bits(bits & load_bits(o[3].words + i));
    }
    counts[o[0].index] += sum_of_lanes(a);
    counts[o[1].index] += sum_of_lanes(b);
    counts[o[2].index] += sum_of_lanes(c);
    counts[o[3].index] += sum_of_lanes(d);
  }
  for (; k < n; ++k) {
    Vector<uint64_t> sum{};
    for (int64_t i = 0; i < words; i += kWidth) {
      sum += count_bits(load_bits(mask + i) & load_bits(others[k].words + i));
    }
    counts[others[k].index] += sum_of_lanes(sum);
  }
}
