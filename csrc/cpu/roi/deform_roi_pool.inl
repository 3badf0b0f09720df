// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Channels are neighbours in memory.

// Sums the weighted pixels of a bin, n channels from c on, kVectors vectors at a time. Blocks of
// kRoIChannels sums are `apart` numbers from each other.
template <int kVectors, typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void sum_pixels(const BinPixels<A>& b, const T* map, int64_t c, int64_t n, A* sums,
                              int64_t apart) {
  constexpr int64_t kWidth = kLanes<A>;
  Vector<A> sum[kVectors] = {};
  for (const auto& row : b.rows) {
    for (const auto& col : b.cols) {
      const T* pixel = map + row.offset + col.offset + c;
      const Vector<A> weight = splat(row.weight * col.weight);
      DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) {
        const T* from = pixel + v * kWidth;
        sum[v] = fused(weight, kVectors > 1 ? load(from) : load_first(from, n), sum[v]);
      }
    }
  }
  DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) {
    const int64_t to = c + v * kWidth;
    store(sums + to / kRoIChannels * apart + to % kRoIChannels, sum[v]);
  }
}

template <typename T, typename A = accumulate_t<T>>
void pool_moved_bin(const BinPixels<A>& b, const T* map, int64_t channels, A* sums, int64_t apart) {
  constexpr int64_t kWidth = kLanes<A>;
  int64_t c = 0;
  for (; c + 4 * kWidth <= channels; c += 4 * kWidth) sum_pixels<4>(b, map, c, 0, sums, apart);
  for (; c < channels; c += kWidth) sum_pixels<1>(b, map, c, channels - c, sums, apart);
}

// Adds a bin's gradient to those of its pixels, unless `to_map` is nullptr, and gives its product
// with the slopes of the bin's value along both axes.
template <typename A>
MovedBinGradient<A> spread_moved_bin(const BinPixels<A>& b, const A* grad, const A* map,
                                     int64_t channels, A* to_map) {
  if (channels == 1) {  // the part of a vector that was just stored is slow to load
    MovedBinGradient<A> by{0, 0};
    const A g = *grad;
    for (const auto& row : b.rows) {
      for (const auto& col : b.cols) {
        const int64_t at = row.offset + col.offset;
        if (to_map != nullptr) to_map[at] += row.weight * col.weight * g;
        if (map == nullptr) continue;
        by.y += row.slope * col.weight * (g * map[at]);
        by.x += row.weight * col.slope * (g * map[at]);
      }
    }
    return by;
  }
  constexpr int64_t kWidth = kLanes<A>;
  Vector<A> by_y{}, by_x{};
  for (const auto& row : b.rows) {
    for (const auto& col : b.cols) {
      const int64_t at = row.offset + col.offset;
      const Vector<A> weight = splat(row.weight * col.weight);
      const Vector<A> slope_y = splat(row.slope * col.weight);
      const Vector<A> slope_x = splat(row.weight * col.slope);
      for (int64_t c = 0; c < channels; c += kWidth) {
        const int64_t n = channels - c;
        const Vector<A> g = load_first(grad + c, n);
        if (map != nullptr) {
          const Vector<A> product = g * load_first(map + at + c, n);
          by_y = fused(slope_y, product, by_y);
          by_x = fused(slope_x, product, by_x);
        }
        if (to_map == nullptr) continue;
        A* to = to_map + at + c;
        store_first(to, fused(weight, g, load_first(to, n)), n);
      }
    }
  }
  return {sum_lanes<A>(by_y), sum_lanes<A>(by_x)};
}
