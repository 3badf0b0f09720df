// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "roi_align.inl"

// The product of one position's channels with a bin's gradients.
template <typename T, typename A = accumulate_t<T>>
A dot_channels(const T* map, const A* grad, int64_t channels) {
  constexpr int64_t kWidth = kLanes<A>;
  Vector<A> sum[4] = {};
  int64_t c = 0;
  for (; c + 4 * kWidth <= channels; c += 4 * kWidth) {
    DETOPS_UNROLL for (int v = 0; v < 4; ++v) {
      sum[v] = fused(load(map + c + v * kWidth), load(grad + c + v * kWidth), sum[v]);
    }
  }
  for (; c < channels; c += kWidth) {
    const int64_t n = channels - c;
    sum[0] = fused(load_first(map + c, n), load_first(grad + c, n), sum[0]);
  }
  return sum_lanes<A>((sum[0] + sum[1]) + (sum[2] + sum[3]));
}
