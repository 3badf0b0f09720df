// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One call works on one row of the map.
#include "../simd/lanes.inl"

// RoIs are in order by their place in the picture, not in memory.
template <typename T>
DETOPS_INLINE const T* bins_of(const PSRow<T>& t, int64_t i) {
  const auto& reach = t.reaches[i];
  return t.pooled + (t.order[reach.roi] * t.bins + reach.ph * t.pooled_width) * t.channels;
}

template <typename T>
DETOPS_INLINE void prefetch_bins(const PSRow<T>& t, int64_t i) {
  constexpr int64_t kLine = 64 / sizeof(T);
  if (i >= t.count) return;
  const T* bins = bins_of(t, i);
  for (int64_t j = 0; j < t.pooled_width * t.channels; j += kLine) __builtin_prefetch(bins + j);
}

template <typename T>
void ps_roi_rows_backward(const PSRow<T>& row) {
  using A = accumulate_t<T>;
  constexpr int64_t kWidth = kLanes<A>, kVectors = kPSLanes / kWidth;
  const PSRow<T> t = row;  // see spread_planes in ps_roi_align.inl
  const int64_t apart = t.bins * kPSLanes;
  for (int64_t i = 0; i < t.width * apart; i += kWidth) store(t.sums + i, Vector<A>{});
  for (int64_t i = 0; i < t.count; ++i) {
    const PSReach<A> reach = t.reaches[i];
    const int64_t bin = reach.ph * t.pooled_width;
    const T* grad = bins_of(t, i);
    prefetch_bins(t, i + 6);
    const int64_t* col = t.cols.begin + reach.roi * t.pooled_width;
    for (int64_t pw = 0; pw < t.pooled_width; ++pw, grad += t.channels) {
      for (int64_t v = 0; v < kVectors && v * kWidth < t.n; ++v) {
        const int64_t rest = t.n - v * kWidth;
        const T* g = grad + v * kWidth;
        const Vector<A> spread =
            splat<A>(reach.weight) * (rest < kWidth ? load_part(g, rest) : load(g));
        A* sums = t.sums + (bin + pw) * kPSLanes + v * kWidth;
        for (int64_t k = col[pw]; k < col[pw + 1]; ++k) {
          A* p = sums + t.cols.index[k] * apart;
          store(p, fused(splat<A>(t.cols.weight[k]), spread, load(p)));
        }
      }
    }
  }
  for (int64_t x = 0; x < t.width; ++x) {
    lanes_to_planes<T, kPSLanes>(t.sums + x * apart, t.bins, t.n, t.bins,
                                 t.row + x * t.channels * t.bins);
  }
}

template <typename T>
constexpr PSRoIRowsKernels<T> kPSRoIRowsKernels{ps_roi_rows_backward<T>};
