// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/roi.h"
#include "roi.cuh"

// RoIAlign's rules of one axis, in a block's memory.
namespace detops::cuda {

constexpr int kTaps = 512;  // of one axis that a block holds

// The taps of an axis, bin by bin, as math::visit_pixels gives them.
template <typename A>
struct AxisTaps {
  int32_t index[kTaps];
  A weight[kTaps];
  int32_t count[kTaps / 2];  // of a bin; its taps begin at bin * (kTaps / pooled)

  // False where a bin has more taps than its share.
  __device__ bool hold(const math::RoIAxis<A>& axis, int64_t bin, int64_t pooled, int64_t size) {
    const int share = kTaps / static_cast<int>(pooled), first = static_cast<int>(bin) * share;
    int end = first;
    bool fits = true;
    math::visit_pixels(axis, bin, size, [&](int64_t i, A w) {
      fits = fits && end < first + share;
      if (!fits) return;
      index[end] = static_cast<int32_t>(i);
      weight[end++] = w;
    });
    count[bin] = end - first;
    return fits;
  }

  // Calls visit(index, weight) for the taps of a bin.
  template <typename Visit>
  __device__ void visit(int bin, int pooled, const Visit& visit) const {
    const int first = bin * (kTaps / pooled);
    for (int i = first; i < first + count[bin]; ++i) visit(index[i], weight[i]);
  }
};

// From the first to the last bit that is set.
struct Run {
  int first, count;
};

__device__ inline Run run_of(unsigned bits) {
  if (bits == 0) return {0, 0};
  const int first = __ffs(static_cast<int>(bits)) - 1;
  return {first, kWarp - __clz(static_cast<int>(bits)) - first};
}

// How much of a bin, one per lane, goes to each of a tile's pixels along an axis; gives the bins
// that reach the tile as bits.
template <typename A>
__device__ unsigned hold_weights(const math::RoIAxis<A>& axis, int64_t bin, int64_t pooled,
                                 int64_t size, int64_t tile, A (&weight)[kTile]) {
  for (int i = 0; i < kTile; ++i) weight[i] = 0;
  bool any = false;
  if (bin < pooled) {
    math::visit_taps(axis, bin, size, double(tile - 1), double(tile + kTile),
                     [&](int64_t index, A w) {
                       if (index < tile || index >= tile + kTile) return;
                       weight[index - tile] += w;
                       any = true;
                     });
  }
  return __ballot_sync(0xffffffffu, any);
}

}  // namespace detops::cuda
