// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Channels are neighbours in memory.

// sums[c] += the weighted pixels of a bin, [channels], kVectors vectors at a time.
template <int kVectors, typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void sum_pixels(const BinPixels<A>& b, const T* map, int64_t n, A* sums) {
  constexpr int64_t kWidth = kLanes<A>;
  Vector<A> sum[kVectors] = {};
  for (int64_t r = 0; r < b.rows.count; ++r) {
    for (int64_t k = 0; k < b.cols.count; ++k) {
      const T* pixel = map + b.rows.at[r].offset + b.cols.at[k].offset;
      const Vector<A> weight = splat(b.rows.at[r].weight * b.cols.at[k].weight);
      DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) {
        const T* from = pixel + v * kWidth;
        sum[v] = fused(weight, kVectors > 1 ? load(from) : load_first(from, n), sum[v]);
      }
    }
  }
  DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) store(sums + v * kWidth, sum[v]);
}

// sums: [channels], padded to whole vectors.
template <typename T, typename A = accumulate_t<T>>
void pool_moved_bin(const BinPixels<A>& b, const T* map, int64_t channels, A* sums) {
  constexpr int64_t kWidth = kLanes<A>;
  int64_t c = 0;
  for (; c + 4 * kWidth <= channels; c += 4 * kWidth) sum_pixels<4>(b, map + c, 0, sums + c);
  for (; c < channels; c += kWidth) sum_pixels<1>(b, map + c, channels - c, sums + c);
}

template <typename A>
DETOPS_INLINE MovedBinGradient<A> spread_one_channel(const BinPixels<A>& b, A grad, const A* map,
                                                     A* to_map) {
  MovedBinGradient<A> gradient{0, 0};
  for (int64_t r = 0; r < b.rows.count; ++r) {
    const auto& row = b.rows.at[r];
    for (int64_t k = 0; k < b.cols.count; ++k) {
      const auto& col = b.cols.at[k];
      const int64_t at = row.offset + col.offset;
      if (to_map != nullptr) to_map[at] += row.weight * col.weight * grad;
      if (map == nullptr) continue;
      gradient.y += row.slope * col.weight * (grad * map[at]);
      gradient.x += row.weight * col.slope * (grad * map[at]);
    }
  }
  return gradient;
}

// Adds a bin's gradient to those of its pixels, unless `to_map` is nullptr, and gives its product
// with the slopes of the bin's value along both axes.
template <typename A>
MovedBinGradient<A> spread_moved_bin(const BinPixels<A>& b, const A* grad, const A* map,
                                     int64_t channels, A* to_map) {
  constexpr int64_t kWidth = kLanes<A>;
  Vector<A> by_y{}, by_x{};
  // The part of a vector that was just stored is slow to load.
  if (channels == 1) return spread_one_channel(b, *grad, map, to_map);
  for (int64_t r = 0; r < b.rows.count; ++r) {
    for (int64_t k = 0; k < b.cols.count; ++k) {
      const auto &row = b.rows.at[r], &col = b.cols.at[k];
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

// output[c, bin] = rows[bin, c], whose rows are `stride` apart and may be read to whole vectors.
template <typename T, typename A = accumulate_t<T>>
void turn_bins(const A* rows, int64_t stride, int64_t bins, int64_t channels, T* output) {
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t c = 0; c < channels; c += kWidth) {
    for (int64_t i = 0; i < bins; i += kWidth) {
      Vector<A> v[kWidth];
      for (int64_t j = 0; j < kWidth; ++j) {
        v[j] = i + j < bins ? load(rows + (i + j) * stride + c) : Vector<A>{};
      }
      transpose<A>(v);
      for (int64_t j = 0; j < kWidth && c + j < channels; ++j) {
        store_first(output + (c + j) * bins + i, v[j], bins - i);
      }
    }
  }
}

template <typename T, typename A = accumulate_t<T>>
void store_bins(const A* rows, int64_t stride, int64_t bins, int64_t channels, T* output) {
  for (int64_t i = 0; i < bins; ++i) {
    for (int64_t c = 0; c < channels; c += kLanes<A>) {
      store_first(output + i * channels + c, load(rows + i * stride + c), channels - c);
    }
  }
}
