// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. A row of features and the `scale` rows of
// output pixels that come from it are taken together. Output pixels at the same place (a phase)
// within their feature pixel are split from the others, so that they are neighbours as the features
// are.

// What rows are kept in: whole vectors, which may be read `radius` pixels off either end.
template <typename A>
struct RowSizes {
  int64_t whole, padded;
  explicit RowSizes(const Reassembly& g)
      : whole((g.width + kLanes<A> - 1) / kLanes<A> * kLanes<A>), padded(whole + 2 * g.radius()) {}
};

// to[phase * stride + x] = row[scale * x + phase], and zeros up to `whole`.
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void split_row(const T* row, const Reassembly& g, int64_t whole, A* to,
                             int64_t stride) {
  constexpr int64_t kWidth = kLanes<A>;
  if (g.scale == 1) {
    for (int64_t x = 0; x < g.width; x += kWidth) store(to + x, load_first(row + x, g.width - x));
  } else if (g.scale == 2) {
    for (int64_t x = 0; x < g.width; x += kWidth) {
      const int64_t n = 2 * (g.width - x);
      Vector<A> even = load_first(row + 2 * x, n);
      Vector<A> odd = n > kWidth ? load_first(row + 2 * x + kWidth, n - kWidth) : Vector<A>{};
      unzip<A>(even, odd, AllLanes<A>{});
      store(to + x, even);
      store(to + stride + x, odd);
    }
  } else {
    for (int64_t phase = 0; phase < g.scale; ++phase) {
      A* own = to + phase * stride;
      for (int64_t x = 0; x < g.width; ++x) own[x] = math::to_float(row[g.scale * x + phase]);
      for (int64_t x = g.width; x < whole; ++x) own[x] = 0;
    }
  }
}

// The reverse.
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void merge_row(const A* from, int64_t stride, const Reassembly& g, T* row) {
  constexpr int64_t kWidth = kLanes<A>;
  if (g.scale == 1) {
    for (int64_t x = 0; x < g.width; x += kWidth) store_first(row + x, load(from + x), g.width - x);
  } else if (g.scale == 2) {
    for (int64_t x = 0; x < g.width; x += kWidth) {
      const int64_t n = 2 * (g.width - x);
      Vector<A> low = load(from + x), high = load(from + stride + x);
      zip<A>(low, high, AllLanes<A>{});
      store_first(row + 2 * x, low, n);
      if (n > kWidth) store_first(row + 2 * x + kWidth, high, n - kWidth);
    }
  } else {
    for (int64_t phase = 0; phase < g.scale; ++phase) {
      const A* own = from + phase * stride;
      for (int64_t x = 0; x < g.width; ++x) math::from_float(own[x], row[g.scale * x + phase]);
    }
  }
}

template <typename A>
DETOPS_INLINE void clear(A* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = 0;
}

// to[tap, phase of both axes, x]: the masks of a group over a row of features.
template <typename T, typename A = accumulate_t<T>>
void load_masks(const Reassembly& g, const T* masks, int64_t row, A* to) {
  const RowSizes<A> sizes(g);
  for (int64_t tap = 0; tap < g.taps(); ++tap) {
    for (int64_t py = 0; py < g.scale; ++py) {
      const T* from = masks + tap * g.output_size() + (g.scale * row + py) * g.output_width();
      split_row(from, g, sizes.whole, to + (tap * g.scale + py) * g.scale * sizes.whole,
                sizes.whole);
    }
  }
}

// to[channel, i, x + radius]: the kernel's rows around a row of features.
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void load_features(const Reassembly& g, const T* features, int64_t channels,
                                 int64_t row, A* to) {
  const RowSizes<A> sizes(g);
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < g.kernel; ++i, to += sizes.padded) {
      const int64_t y = row + i - g.radius();
      if (y < 0 || y >= g.height) {
        clear(to, sizes.padded);
        continue;
      }
      const T* from = features + c * g.size() + y * g.width;
      clear(to, g.radius());
      for (int64_t x = 0; x < g.width; x += kLanes<A>) {
        store(to + g.radius() + x, load_first(from + x, g.width - x));
      }
      clear(to + g.radius() + g.width, sizes.padded - g.radius() - g.width);
    }
  }
}

// Two phases of an output row at a time, so that each vector of features serves both.
template <int kChannels, int kPhases, typename A>
DETOPS_INLINE void weigh_features(const Reassembly& g, const A* masks, const A* features, A* sums) {
  const RowSizes<A> sizes(g);
  const int64_t phases = g.scale * g.scale, whole = sizes.whole;
  for (int64_t x = 0; x < whole; x += kLanes<A>) {
    Vector<A> sum[kChannels][kPhases] = {};
    for (int64_t i = 0; i < g.kernel; ++i) {
      for (int64_t j = 0; j < g.kernel; ++j) {
        const A* mask = masks + (i * g.kernel + j) * phases * whole + x;
        Vector<A> own[kPhases];
        DETOPS_UNROLL for (int p = 0; p < kPhases; ++p) own[p] = load(mask + p * whole);
        DETOPS_UNROLL for (int c = 0; c < kChannels; ++c) {
          const Vector<A> value = load(features + (c * g.kernel + i) * sizes.padded + x + j);
          DETOPS_UNROLL for (int p = 0; p < kPhases; ++p) {
            sum[c][p] = fused(own[p], value, sum[c][p]);
          }
        }
      }
    }
    DETOPS_UNROLL for (int c = 0; c < kChannels; ++c) {
      DETOPS_UNROLL for (int p = 0; p < kPhases; ++p)
          store(sums + (c * g.scale + p) * whole + x, sum[c][p]);
    }
  }
}

// The output rows of some channels of a group: rows[channel, i, x] and sums[channel, phase, x] are
// scratch.
template <int kChannels, typename T, typename A = accumulate_t<T>>
void reassemble_row(const Reassembly& g, const A* masks, const T* features, int64_t row, A* rows,
                    A* sums, T* output) {
  const int64_t whole = RowSizes<A>(g).whole;
  load_features(g, features, kChannels, row, rows);
  for (int64_t py = 0; py < g.scale; ++py) {
    int64_t px = 0;
    const auto at = [&] { return masks + (py * g.scale + px) * whole; };
    for (; px + 2 <= g.scale; px += 2) {
      weigh_features<kChannels, 2>(g, at(), rows, sums + px * whole);
    }
    if (px < g.scale) weigh_features<kChannels, 1>(g, at(), rows, sums + px * whole);
    for (int c = 0; c < kChannels; ++c) {
      T* to = output + c * g.output_size() + (g.scale * row + py) * g.output_width();
      merge_row(sums + c * g.scale * whole, whole, g, to);
    }
  }
}

// Adds what some channels give to the gradient of masks that load_masks would load.
template <int kChannels, typename T, typename A = accumulate_t<T>>
void add_mask_gradients(const Reassembly& g, const T* grad, const T* features, int64_t row, A* rows,
                        A* split, A* to_masks) {
  const RowSizes<A> sizes(g);
  const int64_t phases = g.scale * g.scale, whole = sizes.whole;
  load_features(g, features, kChannels, row, rows);
  for (int c = 0; c < kChannels; ++c) {
    for (int64_t py = 0; py < g.scale; ++py) {
      const T* from = grad + c * g.output_size() + (g.scale * row + py) * g.output_width();
      split_row(from, g, whole, split + (c * g.scale + py) * g.scale * whole, whole);
    }
  }
  for (int64_t x = 0; x < whole; x += kLanes<A>) {
    for (int64_t phase = 0; phase < phases; ++phase) {
      Vector<A> own[kChannels];
      DETOPS_UNROLL for (int c = 0; c < kChannels; ++c) {
        own[c] = load(split + (c * phases + phase) * whole + x);
      }
      A* to = to_masks + phase * whole + x;
      for (int64_t i = 0; i < g.kernel; ++i) {
        for (int64_t j = 0; j < g.kernel; ++j, to += phases * whole) {
          Vector<A> sum = load(to);
          DETOPS_UNROLL for (int c = 0; c < kChannels; ++c) {
            sum = fused(own[c], load(rows + (c * g.kernel + i) * sizes.padded + x + j), sum);
          }
          store(to, sum);
        }
      }
    }
  }
}

template <typename T, typename A = accumulate_t<T>>
void store_masks(const Reassembly& g, const A* from, int64_t row, T* masks) {
  const int64_t whole = RowSizes<A>(g).whole;
  for (int64_t tap = 0; tap < g.taps(); ++tap) {
    for (int64_t py = 0; py < g.scale; ++py) {
      T* to = masks + tap * g.output_size() + (g.scale * row + py) * g.output_width();
      merge_row(from + (tap * g.scale + py) * g.scale * whole, whole, g, to);
    }
  }
}

// to[phase, x + radius] for output rows py = 0, 1, ... of a row of features that may be off the
// map.
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void load_padded_phases(const Reassembly& g, const T* plane, int64_t row, A* to) {
  const RowSizes<A> sizes(g);
  const int64_t radius = g.radius();
  if (row < 0 || row >= g.height) return clear(to, g.scale * g.scale * sizes.padded);
  for (int64_t py = 0; py < g.scale; ++py, to += g.scale * sizes.padded) {
    split_row(plane + (g.scale * row + py) * g.output_width(), g, sizes.whole, to + radius,
              sizes.padded);
    for (int64_t px = 0; px < g.scale; ++px) {
      A* own = to + px * sizes.padded;
      clear(own, radius);
      clear(own + radius + g.width, sizes.padded - radius - g.width);
    }
  }
}

// to[i, j, phase, x + radius]: the masks of the output pixels which the features of a row reach by
// tap (i, j).
template <typename T, typename A = accumulate_t<T>>
void load_reached_masks(const Reassembly& g, const T* masks, int64_t row, A* to) {
  const int64_t size = g.scale * g.scale * RowSizes<A>(g).padded;
  for (int64_t tap = 0; tap < g.taps(); ++tap, to += size) {
    load_padded_phases(g, masks + tap * g.output_size(), row - tap / g.kernel + g.radius(), to);
  }
}

// The gradient of a row of some channels' features. split[channel, i, phase, x] is scratch.
template <int kChannels, typename T, typename A = accumulate_t<T>>
void gather_feature_gradients(const Reassembly& g, const A* masks, const T* grad, int64_t row,
                              A* split, T* to_features) {
  const RowSizes<A> sizes(g);
  const int64_t phases = g.scale * g.scale, size = phases * sizes.padded;
  for (int c = 0; c < kChannels; ++c) {
    for (int64_t i = 0; i < g.kernel; ++i) {
      load_padded_phases(g, grad + c * g.output_size(), row - i + g.radius(),
                         split + (c * g.kernel + i) * size);
    }
  }
  for (int64_t x = 0; x < g.width; x += kLanes<A>) {
    Vector<A> sum[kChannels] = {};
    for (int64_t i = 0; i < g.kernel; ++i) {
      for (int64_t j = 0; j < g.kernel; ++j) {
        const int64_t at = x + 2 * g.radius() - j;
        const A* mask = masks + (i * g.kernel + j) * size + at;
        const A* outer = split + i * size + at;
        for (int64_t p = 0; p < size; p += sizes.padded) {
          const Vector<A> own = load(mask + p);
          DETOPS_UNROLL for (int c = 0; c < kChannels; ++c) {
            sum[c] = fused(own, load(outer + c * g.kernel * size + p), sum[c]);
          }
        }
      }
    }
    DETOPS_UNROLL for (int c = 0; c < kChannels; ++c) {
      store_first(to_features + c * g.size() + row * g.width + x, sum[c], g.width - x);
    }
  }
}
