// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <vector>

namespace detops::cpu {

// An unsigned key that ascends as the score descends. NaN comes first, as in torch.sort descending;
// -0 and +0 are equal.
template <typename T>
auto descending_key(T score) {
  using Key = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  constexpr Key kSign = Key(1) << (8 * sizeof(T) - 1);
  if (score != score) return Key(0);
  score += T(0);
  Key bits;
  std::memcpy(&bits, &score, sizeof bits);
  return static_cast<Key>(bits & kSign ? bits : ~bits & ~kSign);
}

// Stable ascending argsort. `order` holds 0..n-1 or any permutation of interest on entry: ties keep
// its order. Least-significant-digit radix sort, with only as many digits as the key range needs.
template <typename Key>
void argsort(const std::vector<Key>& keys, std::vector<int64_t>& order) {
  constexpr int kBits = 11;
  constexpr Key kMask = (Key(1) << kBits) - 1;
  const int64_t n = static_cast<int64_t>(order.size());
  if (n < 2) return;
  if (n < 512) {  // the histograms would cost more than the comparisons
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return keys[a] < keys[b]; });
    return;
  }
  const auto [lowest, highest] = std::minmax_element(keys.begin(), keys.end());
  const Key base = *lowest, range = *highest - base;
  struct Item {
    Key key;
    int64_t index;
  };
  std::vector<Item> items(n), sorted(n);
  for (int64_t i = 0; i < n; ++i) items[i] = {static_cast<Key>(keys[order[i]] - base), order[i]};
  for (unsigned shift = 0; shift < 8 * sizeof(Key) && (range >> shift) != 0; shift += kBits) {
    int64_t start[size_t(kMask) + 2] = {};
    for (const Item& item : items) ++start[((item.key >> shift) & kMask) + 1];
    std::partial_sum(std::begin(start), std::end(start), std::begin(start));
    for (const Item& item : items) sorted[start[(item.key >> shift) & kMask]++] = item;
    items.swap(sorted);
  }
  for (int64_t i = 0; i < n; ++i) order[i] = items[i].index;
}

inline std::vector<int64_t> iota(int64_t n) {
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), int64_t(0));
  return order;
}

}  // namespace detops::cpu
