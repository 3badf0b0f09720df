// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One call works on one bin.

// Of channels [c, c + n): kVectors full vectors, or one that is not.
template <int kVectors, bool kWhole, typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void largest_of_channels(const MaxBin<T>& b, int64_t c, int64_t n) {
  constexpr int64_t kWidth = kLanes<A>;
  const Vector<A> lowest = splat<A>(-A(__builtin_inf())), off_map = splat<A>(b.off_map);
  Vector<A> best[kVectors], row[kVectors], col[kVectors], first[kVectors] = {};
  for (int v = 0; v < kVectors; ++v) {
    best[v] = lowest;
    row[v] = col[v] = off_map;
  }
  for (int64_t r = 0; r < b.rows.count; ++r) {
    const LineSample<A>& y = b.rows.at[r];
    const T* upper = b.map + y.taps.low * b.row_stride + c;
    const T* lower = upper + (y.taps.high - y.taps.low) * b.row_stride;
    for (int64_t k = 0; k < b.cols.count; ++k) {
      const LineSample<A>& x = b.cols.at[k];
      Vector<A> value[kVectors] = {};
      const auto add = [&](const T* pixel, A weight) {
        if (weight == 0) return;  // what is not finite must not meet a weight of zero
        const Vector<A> w = splat(weight);
        DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) {
          const T* from = pixel + v * kWidth;
          value[v] = fused(w, kWhole ? load(from) : load_part(from, n), value[v]);
        }
      };
      const int64_t left = x.taps.low * b.col_stride;
      const int64_t right = x.taps.high * b.col_stride;
      add(upper + left, y.taps.weight_low * x.taps.weight_low);
      add(upper + right, y.taps.weight_low * x.taps.weight_high);
      add(lower + left, y.taps.weight_high * x.taps.weight_low);
      add(lower + right, y.taps.weight_high * x.taps.weight_high);
      DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) {
        if (r == 0 && k == 0) first[v] = value[v];
        const auto exceeds = value[v] > best[v];  // see math::exceeds
        best[v] = exceeds ? value[v] : best[v];
        row[v] = exceeds ? splat(y.mark) : row[v];
        col[v] = exceeds ? splat(x.mark) : col[v];
      }
    }
  }
  const bool none_on_map = b.rows.count == 0 || b.cols.count == 0;
  const bool some_off_map = none_on_map || !b.rows.all || !b.cols.all;
  for (int v = 0; v < kVectors; ++v) {
    if (some_off_map) {
      const auto exceeds = Vector<A>{} > best[v];
      best[v] = exceeds ? Vector<A>{} : best[v];
      row[v] = exceeds ? off_map : row[v];
      col[v] = exceeds ? off_map : col[v];
    }
    if (!none_on_map) {
      const auto none = best[v] == lowest;
      best[v] = none ? first[v] : best[v];
      row[v] = none ? splat(b.rows.at[0].mark) : row[v];
      col[v] = none ? splat(b.cols.at[0].mark) : col[v];
    }
    A* to = b.best + c + v * kWidth;
    store(to, best[v]);
    store(to + b.apart, row[v]);
    store(to + 2 * b.apart, col[v]);
  }
}

template <typename T>
void largest_of_bin(const MaxBin<T>& bin) {
  const MaxBin<T> b = bin;  // what is stored through a number could be a member
  constexpr int64_t kWidth = kLanes<accumulate_t<T>>;
  int64_t c = 0;
  for (; c + 2 * kWidth <= b.channels; c += 2 * kWidth) largest_of_channels<2, true>(b, c, kWidth);
  for (; c + kWidth <= b.channels; c += kWidth) largest_of_channels<1, true>(b, c, kWidth);
  if (c < b.channels) largest_of_channels<1, false>(b, c, b.channels - c);
}
