// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One call works on one RoI, whose bins are
// lists of positions.

template <typename M, typename P>
using BinTask = PoolTask<BinTaps<accumulate_t<std::remove_const_t<M>>>, M, P>;

// Channels of one bin in registers: kPairs pairs of vectors, or where there are none, n numbers.
template <int kPairs, typename T, typename A>
DETOPS_INLINE void pool_channels(const BinTaps<A>& taps, int64_t bin, const T* map, int64_t apart,
                                 T* out, int64_t n = 0) {
  constexpr int64_t kWidth = 2 * kLanes<A>;
  Vector<A> sum[kPairs > 0 ? 2 * kPairs : 1] = {};
  for (int32_t k = taps.begin[bin]; k < taps.begin[bin + 1]; ++k) {
    const T* p = map + taps.position[k] * apart;
    const Vector<A> weight = splat(taps.weight[k]);
    if constexpr (kPairs == 0) sum[0] = fused(weight, load_part(p, n), sum[0]);
    DETOPS_UNROLL for (int v = 0; v < kPairs; ++v) {
      Vector<A> a, b;
      load_pair(p + v * kWidth, a, b);
      sum[2 * v] = fused(weight, a, sum[2 * v]);
      sum[2 * v + 1] = fused(weight, b, sum[2 * v + 1]);
    }
  }
  if constexpr (kPairs == 0) store_part(out, sum[0], n);
  DETOPS_UNROLL for (int v = 0; v < kPairs; ++v) {
    store_pair(out + v * kWidth, sum[2 * v], sum[2 * v + 1]);
  }
}

// A bin is a weighted sum of a few contiguous runs of channels.
template <int kMostPairs, typename T, typename A>
DETOPS_INLINE void pool_bins(const BinTaps<A>& taps, const T* map, int64_t apart, int64_t channels,
                             T* out, int64_t bin_stride) {
  constexpr int64_t kWidth = kLanes<A>, kMost = 2 * kMostPairs * kWidth;
  for (int64_t bin = 0; bin < taps.bins; ++bin, out += bin_stride) {
    int64_t c = 0;
    for (; c + kMost <= channels; c += kMost) {
      pool_channels<kMostPairs>(taps, bin, map + c, apart, out + c);
    }
    for (; c + 2 * kWidth <= channels; c += 2 * kWidth) {
      pool_channels<1>(taps, bin, map + c, apart, out + c);
    }
    for (; c < channels; c += kWidth) {
      const int64_t n = channels - c < kWidth ? channels - c : kWidth;
      pool_channels<0>(taps, bin, map + c, apart, out + c, n);
    }
  }
}

// [H, W, C].
template <typename T>
void pool_positions(const BinTask<const T, T>& t) {
  pool_bins<4>(t.taps, t.map, t.position_stride, t.channels, t.pooled, t.bin_stride);
}

// The reverse; adds to the map.
template <typename T, typename A = accumulate_t<T>>
void spread_positions(const BinTask<A, const T>& task) {
  const BinTask<A, const T> t = task;  // see spread_planes in ps_roi_align.inl
  const int64_t first = t.row_begin * t.width, positions = (t.row_end - t.row_begin) * t.width;
  for (int64_t bin = 0; bin < t.taps.bins; ++bin) {
    const T* grad = t.pooled + bin * t.bin_stride;
    for (int32_t k = t.taps.begin[bin]; k < t.taps.begin[bin + 1]; ++k) {
      const int64_t at = t.taps.position[k] - first;
      if (at < 0 || at >= positions) continue;
      A* to = t.map + at * t.position_stride;
      const Vector<A> weight = splat(t.taps.weight[k]);
      for (int64_t c = 0; c < t.channels; c += kLanes<A>) {
        const int64_t n = t.channels - c;
        store_first(to + c, fused(weight, load_first(grad + c, n), load_first(to + c, n)), n);
      }
    }
  }
}

// Calls run(bin, map, pooled) for each bin of each channel.
template <typename M, typename P, typename Run>
DETOPS_INLINE void for_each_bin(const BinTask<M, P>& t, Run&& run) {
  for (int64_t c = 0; c < t.channels; ++c) {
    M* map = t.map + c * t.channel_stride;
    P* pooled = t.pooled + c * t.pooled_channel_stride;
    for (int64_t bin = 0; bin < t.taps.bins; pooled += t.pooled_row_stride) {
      for (int64_t i = 0; i < t.wide; ++i, ++bin) run(bin, map, pooled + i * t.bin_stride);
    }
  }
}

template <typename T, typename A = accumulate_t<T>>
void pool_planes(const BinTask<const T, T>& task) {
  const BinTask<const T, T> t = task;
  for_each_bin(t, [&](int64_t bin, const T* map, T* pooled) {
    A sum = 0;
    for (int32_t k = t.taps.begin[bin]; k < t.taps.begin[bin + 1]; ++k) {
      sum += t.taps.weight[k] * A(math::to_float(map[t.taps.position[k] * t.position_stride]));
    }
    math::from_float(sum, *pooled);
  });
}

template <typename T, typename A = accumulate_t<T>>
void spread_planes(const BinTask<A, const T>& task) {
  const BinTask<A, const T> t = task;
  const int64_t first = t.row_begin * t.width, positions = (t.row_end - t.row_begin) * t.width;
  for_each_bin(t, [&](int64_t bin, A* map, const T* pooled) {
    const A grad = math::to_float(*pooled);
    for (int32_t k = t.taps.begin[bin]; k < t.taps.begin[bin + 1]; ++k) {
      const int64_t at = t.taps.position[k] - first;
      if (at >= 0 && at < positions) map[at * t.position_stride] += t.taps.weight[k] * grad;
    }
  });
}

// What is held in registers at a time of the channels of one position in lanes.
template <typename A>
constexpr int64_t kHeld = kRoIChannels < 8 * kLanes<A> ? kRoIChannels / kLanes<A> : 8;

// Lanes, whose rows have all columns: `map` is where position 0 would be.
template <typename A>
void pool_lanes(const BinTaps<A>& taps, const A* map, int64_t, A*, A* pooled) {
  pool_bins<kHeld<A> / 2>(taps, map, kRoIChannels, kRoIChannels, pooled, kRoIChannels);
}

// The transpose; adds to the map.
template <typename A>
void spread_lanes(const BinTaps<A>& taps, A* map, int64_t, A*, const A* pooled) {
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t bin = 0; bin < taps.bins; ++bin) {
    for (int64_t c = 0; c < kRoIChannels; c += kHeld<A> * kWidth) {
      const A* in = pooled + bin * kRoIChannels + c;
      Vector<A> grad[kHeld<A>];
      DETOPS_UNROLL for (int64_t v = 0; v < kHeld<A>; ++v) grad[v] = load(in + v * kWidth);
      for (int32_t k = taps.begin[bin]; k < taps.begin[bin + 1]; ++k) {
        A* p = map + taps.position[k] * kRoIChannels + c;
        const Vector<A> weight = splat(taps.weight[k]);
        DETOPS_UNROLL for (int64_t v = 0; v < kHeld<A>; ++v) {
          store(p + v * kWidth, fused(weight, grad[v], load(p + v * kWidth)));
        }
      }
    }
  }
}
