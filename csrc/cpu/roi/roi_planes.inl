// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One RoI on planes as they are: either the rows
// of a bin are combined first, many columns at a time, and then the columns (a vector reads
// neighbours, needed or not), or the samples' pixels are read one by one.

template <typename M, typename P>
using ProductTask = PoolTask<ProductTaps<accumulate_t<std::remove_const_t<M>>>, M, P>;

// All channels of an [H, W, C] map are one plane, on which they are interleaved.
template <typename M, typename P>
DETOPS_INLINE int64_t planes_of(const ProductTask<M, P>& t) {
  return t.position_stride > 1 ? 1 : t.channels;
}

// What combining whole rows costs. A vector of a row is about one operation, and so is a pixel that
// is read for four rows' weights.
template <typename A>
DETOPS_INLINE int64_t cost_of_rows(const ProductTaps<A>& taps) {
  const int64_t vectors = taps.cols.extent / kLanes<A> + 2;
  return taps.rows.size() * vectors + taps.rows.pooled * taps.cols.size();
}

// Whether the positions [begin, end) of an axis are neighbours, as where a bin has many samples.
template <typename A>
DETOPS_INLINE bool neighbours(const AxisTaps<A>& axis, int32_t begin, int32_t end) {
  return end - begin >= kLanes<A> && axis.index[end - 1] - axis.index[begin] == end - begin - 1;
}

// out[i] = the sum over row `ph` of an axis of weight * its row of the map, for i < length.
template <typename T, typename A>
DETOPS_INLINE void combine_rows(const AxisTaps<A>& axis, int64_t ph, const T* map,
                                int64_t row_stride, int64_t length, A* out) {
  constexpr int64_t kWidth = kLanes<A>;
  const int32_t begin = axis.begin[ph], end = axis.begin[ph + 1];
  int64_t i = 0;
  for (; i + 4 * kWidth <= length; i += 4 * kWidth) {
    Vector<A> sum[4] = {};
    for (int32_t r = begin; r < end; ++r) {
      const T* p = map + axis.index[r] * row_stride + i;
      const Vector<A> weight = splat(axis.weight[r]);
      DETOPS_UNROLL for (int v = 0; v < 4; ++v) {
        sum[v] = fused(weight, load(p + v * kWidth), sum[v]);
      }
    }
    DETOPS_UNROLL for (int v = 0; v < 4; ++v) store(out + i + v * kWidth, sum[v]);
  }
  for (; i < length; i += kWidth) {
    Vector<A> sum{};
    for (int32_t r = begin; r < end; ++r) {
      const T* p = map + axis.index[r] * row_stride + i;
      sum = fused(splat(axis.weight[r]), load_first(p, length - i), sum);
    }
    store_first(out + i, sum, length - i);
  }
}

// The sum over bin `pw` of weight * its position of a row that begins with the first that is
// touched, `apart` numbers from one position to the next.
template <typename A>
DETOPS_INLINE A combine_columns(const AxisTaps<A>& axis, int64_t pw, const A* row, int64_t apart) {
  const int32_t begin = axis.begin[pw], end = axis.begin[pw + 1];
  A sum = 0;
  int32_t k = begin;
  if (apart == 1 && neighbours(axis, begin, end)) {
    const A* p = row + axis.index[begin] - axis.first;
    Vector<A> sums{};
    for (; k + kLanes<A> <= end; k += kLanes<A>) {
      sums = fused(load(axis.weight + k), load(p + k - begin), sums);
    }
    sum = sum_lanes<A>(sums);
  }
  for (; k < end; ++k) {
    sum += axis.weight[k] * row[(axis.index[k] - axis.first) * apart];
  }
  return sum;
}

// Calls run(number, first) for all of `count`, kMost at a time (8, or 4) and what is left.
template <int kMost, typename Run>
DETOPS_INLINE void for_some(int64_t count, Run&& run) {
  int64_t i = 0;
  for (; i + kMost <= count; i += kMost) run(std::integral_constant<int, kMost>(), i);
  if constexpr (kMost > 4) {
    if (i + 4 <= count) run(std::integral_constant<int, 4>(), i), i += 4;
  }
  if (count - i == 3) return run(std::integral_constant<int, 3>(), i);
  if (count - i == 2) return run(std::integral_constant<int, 2>(), i);
  if (count - i == 1) return run(std::integral_constant<int, 1>(), i);
}

// The same pixel by pixel, for the columns of all taps: kRows rows of the taps from `r` on, added
// to what is there.
template <int kRows, typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void gather_rows(const ProductTask<const T, T>& t, int64_t r, const T* map,
                               bool add) {
  const T* row[kRows];
  A weight[kRows];
  for (int j = 0; j < kRows; ++j) {
    row[j] = map + t.taps.rows.index[r + j] * t.row_stride();
    weight[j] = t.taps.rows.weight[r + j];
  }
  const int64_t taps = t.taps.cols.size(), apart = t.position_stride;
  for (int64_t k = 0; k < taps; ++k) {
    const int64_t at = t.taps.cols.index[k] * apart;
    A sum = add ? t.scratch[k] : A(0);
    DETOPS_UNROLL for (int j = 0; j < kRows; ++j) sum += weight[j] * A(math::to_float(row[j][at]));
    t.scratch[k] = sum;
  }
}

// One row of bins of one channel.
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void gather_bins(const ProductTask<const T, T>& t, int64_t ph, const T* map, T* out) {
  const int32_t begin = t.taps.rows.begin[ph], end = t.taps.rows.begin[ph + 1];
  for_some<4>(end - begin, [&](auto rows, int64_t r) __attribute__((always_inline)) {
    gather_rows<rows>(t, begin + r, map, r > 0);
  });
  for (int64_t pw = 0; pw < t.taps.cols.pooled; ++pw) {
    A sum = 0;
    for (int32_t k = t.taps.cols.begin[pw]; begin < end && k < t.taps.cols.begin[pw + 1]; ++k) {
      sum += t.taps.cols.weight[k] * t.scratch[k];
    }
    math::from_float(sum, out[pw * t.position_stride]);
  }
}

// Pixel by pixel, kPlanes planes at a time: these share the weights, and wait for memory side by
// side.
template <int kPlanes, typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void sum_pixels(const ProductTask<const T, T>& t, const T* map, T* out) {
  const auto &rows = t.taps.rows, &cols = t.taps.cols;
  const int64_t bins = rows.pooled * cols.pooled;
  for (int64_t ph = 0; ph < rows.pooled; ++ph) {
    for (int64_t pw = 0; pw < cols.pooled; ++pw, ++out) {
      A sum[kPlanes] = {};
      for (int32_t r = rows.begin[ph]; r < rows.begin[ph + 1]; ++r) {
        const T* row = map + rows.index[r] * t.row_stride();
        for (int32_t k = cols.begin[pw]; k < cols.begin[pw + 1]; ++k) {
          const T* p = row + cols.index[k];
          const A weight = rows.weight[r] * cols.weight[k];
          DETOPS_UNROLL for (int j = 0; j < kPlanes; ++j) {
            sum[j] += weight * A(math::to_float(p[j * t.channel_stride]));
          }
        }
      }
      DETOPS_UNROLL for (int j = 0; j < kPlanes; ++j) math::from_float(sum[j], out[j * bins]);
    }
  }
}

// Asks for the rows of a plane: planes are so far apart that a processor sees no pattern.
template <typename T>
DETOPS_INLINE void fetch_rows(const ProductTask<const T, T>& t, const T* map) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int32_t r = 0; r < t.taps.rows.size(); ++r) {
    const T* row = map + t.taps.rows.index[r] * t.row_stride() + t.taps.cols.first;
    for (int64_t i = 0; i < t.taps.cols.extent; i += kLine) __builtin_prefetch(row + i);
  }
}

template <typename T>
void pool_planes(const ProductTask<const T, T>& task) {
  const auto& taps = task.taps;
  const int64_t planes = planes_of(task), pixels = taps.pixels(), cost = cost_of_rows(taps);
  constexpr int64_t kNear = (1 << 20) / sizeof(T);  // elements that fit into the L2 cache
  const bool far = planes > 1 && taps.rows.size() * taps.cols.extent * planes >= kNear;
  const ProductTask<const T, T> t = task;  // see spread_positions
  // Several planes share the weights of a pixel; whole rows of each can be asked for ahead.
  const int64_t all_bins = taps.rows.pooled * taps.cols.pooled;
  const bool shared = planes > 1 || all_bins == 1;
  if (t.position_stride == 1 && shared && 2 * pixels < (far ? 3 : 4) * cost) {
    return for_some<8>(planes, [&](auto number, int64_t p) {
      sum_pixels<number>(t, t.map + p * t.channel_stride, t.pooled + p * all_bins);
    });
  }
  const int64_t apart = t.position_stride, bins = t.taps.cols.pooled * apart;
  const bool by_rows = cost < pixels;
  for (int64_t plane = 0; plane < planes; ++plane) {
    const T* map = t.map + plane * t.channel_stride;
    if (far && by_rows && plane + 1 < planes) fetch_rows(t, map + t.channel_stride);
    T* out = t.pooled + plane * t.taps.rows.pooled * bins;
    for (int64_t ph = 0; ph < t.taps.rows.pooled; ++ph, out += bins) {
      if (!by_rows) {
        for (int64_t c = 0; c < apart; ++c) gather_bins(t, ph, map + c, out + c);
        continue;
      }
      combine_rows(t.taps.rows, ph, map + t.taps.cols.first * apart, t.row_stride(),
                   t.taps.cols.extent * apart, t.scratch);
      for (int64_t c = 0; c < apart; ++c) {
        for (int64_t pw = 0; pw < t.taps.cols.pooled; ++pw) {
          math::from_float(combine_columns(t.taps.cols, pw, t.scratch + c, apart),
                           out[pw * apart + c]);
        }
      }
    }
  }
}

// The reverse of combine_columns.
template <typename A>
DETOPS_INLINE void spread_columns(const AxisTaps<A>& axis, int64_t pw, A grad, A* row,
                                  int64_t apart) {
  const int32_t begin = axis.begin[pw], end = axis.begin[pw + 1];
  int32_t k = begin;
  if (apart == 1 && neighbours(axis, begin, end)) {
    A* p = row + axis.index[begin] - axis.first;
    for (; k + kLanes<A> <= end; k += kLanes<A>) {
      A* to = p + k - begin;
      store(to, fused(load(axis.weight + k), splat(grad), load(to)));
    }
  }
  for (; k < end; ++k) {
    row[(axis.index[k] - axis.first) * apart] += axis.weight[k] * grad;
  }
}

template <typename T, typename A>
DETOPS_INLINE void add_row(const T* row, A weight, int64_t length, A* to) {
  constexpr int64_t kWidth = kLanes<A>;
  const Vector<A> w = splat(weight);
  for (int64_t i = 0; i < length; i += kWidth) {
    const int64_t n = length - i;
    store_first(to + i, fused(w, load_first(row + i, n), load_first(to + i, n)), n);
  }
}

// Calls add(y, weight) for the rows of bin row `ph` that are asked for.
template <typename T, typename A, typename Add>
DETOPS_INLINE void for_each_row(const ProductTask<A, const T>& t, int64_t ph, Add&& add) {
  for (int32_t r = t.taps.rows.begin[ph]; r < t.taps.rows.begin[ph + 1]; ++r) {
    const int64_t y = t.taps.rows.index[r];
    if (y >= t.row_begin && y < t.row_end) add(y - t.row_begin, t.taps.rows.weight[r]);
  }
}

// Adds to the map. What a pixel gets does not depend on which rows are asked for together.
template <typename T, typename A = accumulate_t<T>>
void spread_planes(const ProductTask<A, const T>& task) {
  const ProductTask<A, const T> t = task;  // see spread_positions
  const int64_t apart = t.position_stride, bins = t.taps.cols.pooled * apart;
  const int64_t length = t.taps.cols.extent * apart, taps = t.taps.cols.size();
  const bool by_rows = cost_of_rows(t.taps) < t.taps.pixels();
  for (int64_t ph = 0; ph < t.taps.rows.pooled; ++ph) {
    bool reached = false;
    for_each_row(t, ph, [&](int64_t, A) { reached = true; });
    if (!reached) continue;
    for (int64_t plane = 0; plane < planes_of(t); ++plane) {
      A* map = t.map + plane * t.channel_stride;
      const T* grad = t.pooled + (plane * t.taps.rows.pooled + ph) * bins;
      if (by_rows) {
        for (int64_t i = 0; i < length; ++i) t.scratch[i] = 0;
        for (int64_t c = 0; c < apart; ++c) {
          for (int64_t pw = 0; pw < t.taps.cols.pooled; ++pw) {
            const A g = math::to_float(grad[pw * apart + c]);
            spread_columns(t.taps.cols, pw, g, t.scratch + c, apart);
          }
        }
        for_each_row(t, ph, [&](int64_t y, A weight) {
          add_row(t.scratch, weight, length, map + y * t.row_stride() + t.taps.cols.first * apart);
        });
        continue;
      }
      for (int64_t c = 0; c < apart; ++c) {
        // What each column tap of the row of bins gets, tap by tap.
        for (int64_t pw = 0; pw < t.taps.cols.pooled; ++pw) {
          const A g = math::to_float(grad[pw * apart + c]);
          for (int32_t k = t.taps.cols.begin[pw]; k < t.taps.cols.begin[pw + 1]; ++k) {
            t.scratch[k] = t.taps.cols.weight[k] * g;
          }
        }
        for_each_row(t, ph, [&](int64_t y, A weight) {
          A* row = map + y * t.row_stride() + c;
          for (int64_t k = 0; k < taps; ++k) {
            row[t.taps.cols.index[k] * apart] += weight * t.scratch[k];
          }
        });
      }
    }
  }
}
