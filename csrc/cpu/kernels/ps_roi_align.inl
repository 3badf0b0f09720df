// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One call works on one bin of all RoIs.

// A map narrower than a vector is read in part.
template <bool kNarrow, typename P>
DETOPS_INLINE Vector<accumulate_t<P>> load_columns(const P* p, int64_t width) {
  if constexpr (kNarrow) return load_part(p, width);
  return load(p);
}

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
          sum[j] = fused(splat<A>(t.rows.weight[r]),
                         load_columns<kNarrow>(p + j * t.plane_stride, t.width), sum[j]);
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
          const Vector<A> sum =
              fused(splat<A>(t.rows.weight[r]), spread, load_columns<kNarrow>(p, t.width));
          if constexpr (kNarrow) {
            store_part(p, sum, t.width);
          } else {
            store(p, sum);
          }
        }
      }
    }
  }
}

template <bool kNarrow, typename P, typename T>
DETOPS_INLINE void ps_forward(const PSTile<const P, T>& t) {
  switch (t.n) {
    case 1:
      return pool_planes<1, kNarrow>(t);
    case 2:
      return pool_planes<2, kNarrow>(t);
    case 3:
      return pool_planes<3, kNarrow>(t);
    default:
      return pool_planes<kPSPlanes, kNarrow>(t);
  }
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

template <typename T>
constexpr PSRoIAlignKernels<T> kPSRoIAlignKernels{
    kLanes<accumulate_t<T>>, ps_roi_align_forward<T, T>, ps_roi_align_forward<accumulate_t<T>, T>,
    ps_roi_align_backward<accumulate_t<T>, T>};
