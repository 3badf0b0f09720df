// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One call works on one RoI, whose bins are
// products of rows and columns.

#include "roi_planes.inl"

// Channels of one bin from `c` on: rows of weighted columns, in registers. They are kPairs pairs of
// vectors, or where there are none, n numbers.
template <int kPairs, typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void pool_channels(const ProductTask<const T, T>& t, int64_t ph, int64_t pw,
                                 int64_t c, T* out, int64_t n = 0) {
  const auto &rows = t.taps.rows, &cols = t.taps.cols;
  constexpr int64_t kWidth = 2 * kLanes<A>;
  constexpr int kVectors = kPairs > 0 ? 2 * kPairs : 1;
  Vector<A> sum[kVectors] = {};
  for (int32_t r = rows.begin[ph]; r < rows.begin[ph + 1]; ++r) {
    const T* row = t.map + rows.index[r] * t.row_stride() + c;
    Vector<A> of_row[kVectors] = {};
    for (int32_t k = cols.begin[pw]; k < cols.begin[pw + 1]; ++k) {
      const T* p = row + cols.index[k] * t.position_stride;
      if constexpr (kPairs == 0) of_row[0] += cols.weight[k] * load_part(p, n);
      for (int v = 0; v < kPairs; ++v) {
        Vector<A> a, b;
        load_pair(p + v * kWidth, a, b);
        of_row[2 * v] += cols.weight[k] * a;
        of_row[2 * v + 1] += cols.weight[k] * b;
      }
    }
    for (int v = 0; v < kVectors; ++v) sum[v] += rows.weight[r] * of_row[v];
  }
  if constexpr (kPairs == 0) store_part(out + c, sum[0], n);
  for (int v = 0; v < kPairs; ++v) store_pair(out + c + v * kWidth, sum[2 * v], sum[2 * v + 1]);
}

// [H, W, C]: a bin is a weighted sum of a few contiguous runs of channels.
template <typename T, typename A = accumulate_t<T>>
void pool_positions(const ProductTask<const T, T>& t) {
  constexpr int64_t kWidth = kLanes<A>;
  const int64_t wide = t.taps.cols.pooled;
  for (int64_t bin = 0; bin < t.taps.rows.pooled * wide; ++bin) {
    const int64_t ph = bin / wide, pw = bin % wide;
    T* out = t.pooled + bin * t.bin_stride;
    int64_t c = 0;
    for (; c + 4 * kWidth <= t.channels; c += 4 * kWidth) pool_channels<2>(t, ph, pw, c, out);
    for (; c + 2 * kWidth <= t.channels; c += 2 * kWidth) pool_channels<1>(t, ph, pw, c, out);
    for (; c < t.channels; c += kWidth) {
      pool_channels<0>(t, ph, pw, c, out, t.channels - c < kWidth ? t.channels - c : kWidth);
    }
  }
}

// The reverse; adds to the map. By value: see spread_planes in ps_roi_align.inl.
template <typename T, typename A = accumulate_t<T>>
void spread_positions(const ProductTask<A, const T>& task) {
  const ProductTask<A, const T> t = task;
  const auto& cols = t.taps.cols;
  for (int64_t ph = 0; ph < t.taps.rows.pooled; ++ph) {
    for_each_row(t, ph, [&](int64_t y, A weight) __attribute__((always_inline)) {
      const T* grad = t.pooled + ph * cols.pooled * t.bin_stride;
      for (int64_t pw = 0; pw < cols.pooled; ++pw, grad += t.bin_stride) {
        for (int32_t k = cols.begin[pw]; k < cols.begin[pw + 1]; ++k) {
          A* to = t.map + (y * t.width + cols.index[k]) * t.position_stride;
          add_row(grad, weight * cols.weight[k], t.channels, to);
        }
      }
    });
  }
}

// A matrix of which each row is `length` numbers, a multiple of kRoIChannels.
template <typename A>
struct Rows {
  A* data;
  int64_t stride;
};

template <int kTaps, bool kAdd, typename A>
DETOPS_INLINE void combine_taps(Rows<A> out, Rows<const A> in, const int32_t* index, int64_t step,
                                const A* weight, int64_t rows, int64_t length) {
  constexpr int64_t kWidth = kLanes<A>;
  const A* from[kTaps];
  for (int k = 0; k < kTaps; ++k) from[k] = in.data + index[k] * step;
  for (int64_t row = 0; row < rows; ++row) {
    A* to = out.data + row * out.stride;
    for (int64_t i = 0; i < length; i += 2 * kWidth) {
      Vector<A> low{}, high{};
      if (kAdd) low = load(to + i), high = load(to + i + kWidth);
      for (int k = 0; k < kTaps; ++k) {
        const A* p = from[k] + row * in.stride + i;
        low += weight[k] * load(p);
        high += weight[k] * load(p + kWidth);
      }
      store(to + i, low);
      store(to + i + kWidth, high);
    }
  }
}

// One output position of an axis, for many numbers at once: row by row, `out` becomes (kAdd: grows
// by) the sum over the taps of weight * the row of `in` that lies index * step further on. The
// number of taps is settled outside of the inner loops, where it would be mispredicted.
template <bool kAdd, typename A>
DETOPS_INLINE void combine(Rows<A> out, Rows<const A> in, const AxisTaps<A>& axis, int64_t position,
                           int64_t step, int64_t rows, int64_t length) {
  const int32_t begin = axis.begin[position], taps = axis.begin[position + 1] - begin;
  const int32_t* index = axis.index + begin;
  const A* weight = axis.weight + begin;
  if (taps == 0 && kAdd) return;
  if (taps == 0) return combine_taps<0, false>(out, in, index, step, weight, rows, length);
  if (taps == 1) return combine_taps<1, kAdd>(out, in, index, step, weight, rows, length);
  if (taps == 2) return combine_taps<2, kAdd>(out, in, index, step, weight, rows, length);
  if (taps == 3) return combine_taps<3, kAdd>(out, in, index, step, weight, rows, length);
  combine_taps<4, kAdd>(out, in, index, step, weight, rows, length);
  for (int32_t k = 4; k < taps; ++k) {
    combine_taps<1, true>(out, in, index + k, step, weight + k, rows, length);
  }
}

// Lanes, `map` is where their position (0, 0) would be: first the rows of the map are combined to
// [pooled rows, columns], then the columns.
template <typename A>
void pool_lanes(const ProductTaps<A>& taps, const A* map, int64_t row_stride, A* scratch,
                A* pooled) {
  const auto &rows = taps.rows, &cols = taps.cols;
  const int64_t stride = cols.extent * kRoIChannels, bins_stride = cols.pooled * kRoIChannels;
  const int64_t left = cols.first * kRoIChannels;
  for (int64_t ph = 0; ph < rows.pooled; ++ph) {
    combine<false>(Rows<A>{scratch + ph * stride, 0}, Rows<const A>{map + left, 0}, rows, ph,
                   row_stride, 1, stride);
  }
  for (int64_t pw = 0; pw < cols.pooled; ++pw) {
    combine<false>(Rows<A>{pooled + pw * kRoIChannels, bins_stride},
                   Rows<const A>{scratch - left, stride}, cols, pw, kRoIChannels, rows.pooled,
                   kRoIChannels);
  }
}

// The reverse, with transposed taps; adds to the map.
template <typename A>
void spread_lanes(const ProductTaps<A>& taps, A* map, int64_t row_stride, A* scratch,
                  const A* pooled) {
  const auto &rows = taps.rows, &cols = taps.cols;
  const int64_t stride = cols.extent * kRoIChannels, bins_stride = cols.pooled * kRoIChannels;
  for (int64_t x = 0; x < cols.extent; ++x) {
    combine<false>(Rows<A>{scratch + x * kRoIChannels, stride}, Rows<const A>{pooled, bins_stride},
                   cols, x, kRoIChannels, rows.pooled, kRoIChannels);
  }
  map += rows.first * row_stride + cols.first * kRoIChannels;
  for (int64_t y = 0; y < rows.extent; ++y, map += row_stride) {
    combine<true>(Rows<A>{map, 0}, Rows<const A>{scratch, 0}, rows, y, stride, 1, stride);
  }
}
