// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One call works on one RoI, whose bins are
// lists of positions.

template <typename M, typename P>
using BinTask = PoolTask<BinTaps<accumulate_t<std::remove_const_t<M>>>, M, P>;

// Channels [c, c + 2 * kPairs * lanes) of one bin, in registers.
template <int kPairs, typename T>
DETOPS_INLINE void pool_channels(const BinTask<const T, T>& t, int64_t bin, int64_t c) {
  using A = accumulate_t<T>;
  constexpr int64_t kWidth = 2 * kLanes<A>;
  Vector<A> sum[2 * kPairs] = {};
  for (int32_t k = t.taps.begin[bin]; k < t.taps.begin[bin + 1]; ++k) {
    const T* p = t.map + t.taps.position[k] * t.position_stride + c;
    const Vector<A> weight = splat(t.taps.weight[k]);
    DETOPS_UNROLL for (int v = 0; v < kPairs; ++v) {
      Vector<A> a, b;
      load_pair(p + v * kWidth, a, b);
      sum[2 * v] = fused(weight, a, sum[2 * v]);
      sum[2 * v + 1] = fused(weight, b, sum[2 * v + 1]);
    }
  }
  T* out = t.pooled + bin * t.bin_stride + c;
  DETOPS_UNROLL for (int v = 0; v < kPairs; ++v) {
    store_pair(out + v * kWidth, sum[2 * v], sum[2 * v + 1]);
  }
}

// [H, W, C]: a bin is a weighted sum of a few contiguous runs of channels.
template <typename T>
void pool_positions(const BinTask<const T, T>& t) {
  using A = accumulate_t<T>;
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t bin = 0; bin < t.taps.bins; ++bin) {
    int64_t c = 0;
    for (; c + 8 * kWidth <= t.channels; c += 8 * kWidth) pool_channels<4>(t, bin, c);
    for (; c + 2 * kWidth <= t.channels; c += 2 * kWidth) pool_channels<1>(t, bin, c);
    for (; c < t.channels; c += kWidth) {
      const int64_t n = t.channels - c < kWidth ? t.channels - c : kWidth;
      Vector<A> sum{};
      for (int32_t k = t.taps.begin[bin]; k < t.taps.begin[bin + 1]; ++k) {
        const T* p = t.map + t.taps.position[k] * t.position_stride + c;
        sum = fused(splat(t.taps.weight[k]), load_part(p, n), sum);
      }
      store_part(t.pooled + bin * t.bin_stride + c, sum, n);
    }
  }
}

// The reverse; adds to the map.
template <typename T>
void spread_positions(const BinTask<accumulate_t<T>, const T>& tile) {
  using A = accumulate_t<T>;
  const BinTask<A, const T> t = tile;  // see spread_planes in ps_roi_align.inl
  const int64_t first = t.row_begin * t.width, positions = (t.row_end - t.row_begin) * t.width;
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t bin = 0; bin < t.taps.bins; ++bin) {
    const T* grad = t.pooled + bin * t.bin_stride;
    for (int32_t k = t.taps.begin[bin]; k < t.taps.begin[bin + 1]; ++k) {
      const int64_t at = t.taps.position[k] - first;
      if (at < 0 || at >= positions) continue;
      A* to = t.map + at * t.position_stride;
      const Vector<A> weight = splat(t.taps.weight[k]);
      for (int64_t c = 0; c < t.channels; c += kWidth) {
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

template <typename T>
void pool_planes(const BinTask<const T, T>& planes) {
  using A = accumulate_t<T>;
  const BinTask<const T, T> t = planes;
  for_each_bin(t, [&](int64_t bin, const T* map, T* pooled) {
    A sum = 0;
    for (int32_t k = t.taps.begin[bin]; k < t.taps.begin[bin + 1]; ++k) {
      sum += t.taps.weight[k] * A(math::to_float(map[t.taps.position[k] * t.position_stride]));
    }
    math::from_float(sum, *pooled);
  });
}

template <typename T>
void spread_planes(const BinTask<accumulate_t<T>, const T>& planes) {
  using A = accumulate_t<T>;
  const BinTask<A, const T> t = planes;
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

// Lanes: `map` is where their position (0, 0) would be. Rows have all columns.
template <typename A>
void pool_lanes(const BinTaps<A>& taps, const A* map, int64_t, A*, A* pooled) {
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t bin = 0; bin < taps.bins; ++bin) {
    for (int64_t c = 0; c < kRoIChannels; c += kHeld<A> * kWidth) {
      Vector<A> sum[kHeld<A>] = {};
      for (int32_t k = taps.begin[bin]; k < taps.begin[bin + 1]; ++k) {
        const A* p = map + taps.position[k] * kRoIChannels + c;
        const Vector<A> weight = splat(taps.weight[k]);
        DETOPS_UNROLL for (int64_t v = 0; v < kHeld<A>; ++v) {
          sum[v] = fused(weight, load(p + v * kWidth), sum[v]);
        }
      }
      A* out = pooled + bin * kRoIChannels + c;
      DETOPS_UNROLL for (int64_t v = 0; v < kHeld<A>; ++v) store(out + v * kWidth, sum[v]);
    }
  }
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
