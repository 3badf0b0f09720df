// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "../../math/descending_key.h"
#include "buffer.h"

namespace detops::cpu {

using math::descending_key;

// Stable ascending sort of indices by key.
template <typename Key>
class ArgSort {
 public:
  // Sets order[i] to the index in [0, n) with the i-th smallest key_of(index).
  template <typename KeyOf>
  void operator()(int64_t n, KeyOf&& key_of, uint32_t* order) {
    if (n <= kMaxRankSort) return rank_sort(n, key_of, order);
    Item* items = items_.reserve(2 * n);
    Item* sorted = items + n;
    Key lowest = ~Key(0), highest = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Key key = key_of(i);
      items[i] = {key, static_cast<uint32_t>(i)};
      lowest = std::min(lowest, key);
      highest = std::max(highest, key);
    }
    int bits = 0;
    while (bits < int(8 * sizeof(Key)) && (highest - lowest) >> bits != 0) ++bits;
    const int digit = digit_bits(n, bits);
    const Key mask = (Key(1) << digit) - 1;
    // Counts the digits of all passes at once, because a permutation does not change counts.
    const int passes = (bits + digit - 1) / digit;
    uint32_t* start = counts_.reserve(passes << digit);
    std::fill_n(start, passes << digit, 0);
    for (int64_t i = 0; i < n; ++i) {
      Key key = items[i].key - lowest;
      for (int pass = 0; pass < passes; ++pass, key >>= digit) {
        ++start[(pass << digit) + (key & mask)];
      }
    }
    for (int shift = 0; shift < bits; shift += digit, start += mask + 1) {
      uint32_t total = 0;
      for (Key d = 0; d <= mask; ++d) total += std::exchange(start[d], total);
      for (int64_t i = 0; i < n; ++i) {
        sorted[start[((items[i].key - lowest) >> shift) & mask]++] = items[i];
      }
      std::swap(items, sorted);
    }
    for (int64_t i = 0; i < n; ++i) order[i] = items[i].index;
  }

 private:
  static constexpr int64_t kMaxRankSort = 128;
  static constexpr int kMaxDigitBits = 11;

  struct Item {
    Key key;
    uint32_t index;
  };

  // Returns the number of bits per digit that makes a least-significant-digit radix sort cheapest.
  // A pass visits all items and all counts.
  static int digit_bits(int64_t n, int bits) {
    int best = 1;
    int64_t cheapest = INT64_MAX;
    for (int digit = 1; digit <= std::min(bits, kMaxDigitBits); ++digit) {
      const int64_t passes = (bits + digit - 1) / digit;
      const int64_t cost = passes * (n + (int64_t(1) << digit));
      if (cost < cheapest) cheapest = cost, best = digit;
    }
    return best;
  }

  // Sorts a few keys. The position of each is the number of keys before it, counted without
  // branches.
  template <typename KeyOf>
  static void rank_sort(int64_t n, KeyOf&& key_of, uint32_t* order) {
    Key keys[kMaxRankSort];
    for (int64_t i = 0; i < n; ++i) keys[i] = key_of(i);
    for (int64_t i = 0; i < n; ++i) {
      const Key key = keys[i];
      uint32_t rank = 0;
      for (int64_t j = 0; j < i; ++j) rank += keys[j] <= key;
      for (int64_t j = i + 1; j < n; ++j) rank += keys[j] < key;
      order[rank] = static_cast<uint32_t>(i);
    }
  }

  Buffer<Item> items_;
  Buffer<uint32_t> counts_;
};

}  // namespace detops::cpu
