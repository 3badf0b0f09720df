// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One call works on one bin of all RoIs, or
// on one row of a channels_last map.

#include "../common/planes.inl"

// kNarrow: the map is narrower than a vector, and vectors are read and written in part.
template <int kPlanes, bool kNarrow, typename P, typename T, typename A = accumulate_t<P>>
DETOPS_INLINE void pool_planes(const PSTile<const P, T>& t) {
  static_assert(kPSPlanes == 4, "of sum_lanes_of_four");
  for (int64_t i = 0; i < t.rois; ++i) {
    Vector<A> total[kPSPlanes] = {};
    for (int64_t k = t.cols.begin[i]; k < t.cols.begin[i + 1]; ++k) {
      Vector<A> sum[kPlanes] = {};
      for (int64_t r = t.rows.begin[i]; r < t.rows.begin[i + 1]; ++r) {
        const P* p = t.planes + t.rows.index[r] * t.width + t.cols.index[k];
        for (int j = 0; j < kPlanes; ++j) {
          const P* from = p + j * t.plane_stride;
          const Vector<A> columns = kNarrow ? load_part(from, t.width) : load(from);
          sum[j] = fused(splat<A>(t.rows.weight[r]), columns, sum[j]);
        }
      }
      const Vector<A> weight = load(t.cols.weight + k * kLanes<A>);
      // Not a product alone: what is not read may be NaN.
      for (int j = 0; j < kPlanes; ++j) total[j] += weight != 0 ? weight * sum[j] : Vector<A>{};
    }
    T* out = t.pooled + t.order[i] * t.roi_stride;
    A sums[kPSPlanes];
    sum_lanes_of_four<A>(total, sums);
    for (int j = 0; j < kPlanes; ++j) math::from_float(sums[j], out[j * t.channel_stride]);
  }
}

// By value: what is stored through a vector could be a member of the tile.
template <bool kNarrow, typename A, typename T>
DETOPS_INLINE void spread_planes(const PSTile<A, const T> t) {
  for (int64_t i = 0; i < t.rois; ++i) {
    const T* grad = t.pooled + t.order[i] * t.roi_stride;
    const int64_t row = t.rows.begin[i], last_row = t.rows.begin[i + 1];
    for (int64_t k = t.cols.begin[i]; k < t.cols.begin[i + 1]; ++k) {
      const Vector<A> weight = load(t.cols.weight + k * kLanes<A>);
      A* plane = t.planes + t.cols.index[k];
      for (int64_t j = 0; j < t.n; ++j, plane += t.plane_stride) {
        const A g = math::to_float(grad[j * t.channel_stride]);
        const Vector<A> spread = weight != 0 ? weight * splat<A>(g) : Vector<A>{};
        for (int64_t r = row; r < last_row; ++r) {
          A* p = plane + t.rows.index[r] * t.width;
          const Vector<A> columns = kNarrow ? load_part(p, t.width) : load(p);
          const Vector<A> sum = fused(splat<A>(t.rows.weight[r]), spread, columns);
          store_first(p, sum, kNarrow ? t.width : kLanes<A>);
        }
      }
    }
  }
}

template <bool kNarrow, typename P, typename T>
DETOPS_INLINE void ps_forward(const PSTile<const P, T>& t) {
  if (t.n == 1) return pool_planes<1, kNarrow>(t);
  if (t.n == 2) return pool_planes<2, kNarrow>(t);
  if (t.n == 3) return pool_planes<3, kNarrow>(t);
  pool_planes<kPSPlanes, kNarrow>(t);
}

template <typename P, typename T>
void ps_roi_align_forward(const PSTile<const P, T>& t) {
  if (t.width < kLanes<accumulate_t<P>>) return ps_forward<true>(t);
  ps_forward<false>(t);
}

template <typename A, typename T>
void ps_roi_align_backward(const PSTile<A, const T>& t) {
  if (t.width < kLanes<A>) return spread_planes<true>(t);
  spread_planes<false>(t);
}

// As fused, of single numbers.
template <typename A>
DETOPS_INLINE A fused_number(A a, A b, A c) {
#if defined(DETOPS_X86_TARGETS) && DETOPS_VECTOR_BYTES == 32
  if constexpr (sizeof(A) == 4) return __builtin_fmaf(a, b, c);
  if constexpr (sizeof(A) == 8) return __builtin_fma(a, b, c);
#endif
  return a * b + c;
}

// RoI i on neighbouring channels of a channels_last map, a vector or a number V of them. Operation
// by operation the lanes of pool_planes, so that the bits do not depend on the way that is taken.
template <typename V, typename T, typename A = accumulate_t<T>>
DETOPS_INLINE V pool_positions(const PSTile<const T, T>& t, int64_t i, const T* map) {
  constexpr int kWidth = kLanes<A>;
  const int64_t row_stride = t.width * t.apart;
  V total[kWidth] = {};
  for (int64_t k = t.cols.begin[i]; k < t.cols.begin[i + 1]; ++k) {
    const A* weight = t.cols.weight + k * kWidth;
    const T* first = map + t.cols.index[k] * t.apart;
    V sum[kWidth] = {};
    for (int64_t r = t.rows.begin[i]; r < t.rows.begin[i + 1]; ++r) {
      const T* p = first + t.rows.index[r] * row_stride;
      const A w = t.rows.weight[r];
      DETOPS_UNROLL for (int lane = 0; lane < kWidth; ++lane) {
        if (weight[lane] == 0) continue;
        if constexpr (std::is_same_v<V, A>) {
          sum[lane] = fused_number(w, A(math::to_float(p[lane * t.apart])), sum[lane]);
        } else {
          sum[lane] = fused(splat<A>(w), load(p + lane * t.apart), sum[lane]);
        }
      }
    }
    DETOPS_UNROLL for (int lane = 0; lane < kWidth; ++lane) {
      if (weight[lane] != 0) total[lane] += weight[lane] * sum[lane];
    }
  }
  for (int step = 1; step < kWidth; step *= 2) {
    for (int lane = 0; lane < kWidth; lane += 2 * step) total[lane] += total[lane + step];
  }
  return total[0];
}

template <typename T, typename A = accumulate_t<T>>
void ps_roi_align_forward_positions(const PSTile<const T, T>& t) {
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t i = 0; i < t.rois; ++i) {
    T* out = t.pooled + t.order[i] * t.roi_stride;
    int64_t c = 0;
    if (t.plane_stride == 1) {
      for (; c + kWidth <= t.n; c += kWidth) {
        store(out + c, pool_positions<Vector<A>>(t, i, t.planes + c));
      }
    }
    for (; c < t.n; ++c) {
      const A sum = pool_positions<A>(t, i, t.planes + c * t.plane_stride);
      math::from_float(sum, out[c]);
    }
  }
}

// RoIs are in order by their place in the picture, not in memory.
template <typename T>
DETOPS_INLINE const T* bins_of(const PSRow<T>& t, int64_t i) {
  const auto& reach = t.reaches[i];
  return t.pooled + (t.order[reach.roi] * t.bins + reach.ph * t.pooled_width) * t.channels;
}

template <typename T, typename A = accumulate_t<T>>
void ps_roi_rows_backward(const PSRow<T>& row) {
  constexpr int64_t kWidth = kLanes<A>, kVectors = kPSLanes / kWidth;
  const PSRow<T> t = row;  // see spread_planes
  const int64_t apart = t.bins * kPSLanes, numbers = t.pooled_width * t.channels;
  for (int64_t i = 0; i < t.width * apart; i += kWidth) store(t.sums + i, Vector<A>{});
  for (int64_t i = 0; i < t.count; ++i) {
    const PSReach<A> reach = t.reaches[i];
    const int64_t bin = reach.ph * t.pooled_width;
    const T* grad = bins_of(t, i);
    const T* ahead = bins_of(t, i + 6 < t.count ? i + 6 : i);
    for (int64_t j = 0; j < numbers; j += 64 / sizeof(T)) __builtin_prefetch(ahead + j);
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
  // Channels of the next column lie too far off for the processor to fetch them ahead by itself.
  const int64_t column = t.channels * t.bins, written = t.n * t.bins;
  for (int64_t x = 0; x < t.width; ++x) {
    T* to = t.row + x * column;
    for (int64_t i = 0; i < written && x + 1 < t.width; i += 64 / sizeof(T)) {
      __builtin_prefetch(to + column + i, 1);
    }
    lanes_to_planes<T, kPSLanes>(t.sums + x * apart, t.bins, t.n, t.bins, to);
  }
}
