// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One call works on one RoI.

#include "../simd/lanes.inl"
#include "roi_planes.inl"

// Channels [c, c + 2 * kPairs * lanes) of one bin: the rule's rows of its columns, in registers.
template <int kPairs, typename T>
DETOPS_INLINE void pool_channels(const RoITile<const T, T>& t, int64_t ph, int64_t pw, int64_t c,
                                 T* out) {
  using A = accumulate_t<T>;
  constexpr int64_t kWidth = 2 * kLanes<A>;
  Vector<A> sum[2 * kPairs] = {};
  for (int32_t r = t.rows.begin[ph]; r < t.rows.begin[ph + 1]; ++r) {
    const T* row = t.map + t.rows.index[r] * t.width * t.channels + c;
    Vector<A> of_row[2 * kPairs] = {};
    for (int32_t k = t.cols.begin[pw]; k < t.cols.begin[pw + 1]; ++k) {
      const T* p = row + t.cols.index[k] * t.channels;
      for (int v = 0; v < kPairs; ++v) {
        Vector<A> a, b;
        load_pair(p + v * kWidth, a, b);
        of_row[2 * v] += t.cols.weight[k] * a;
        of_row[2 * v + 1] += t.cols.weight[k] * b;
      }
    }
    for (int v = 0; v < 2 * kPairs; ++v) sum[v] += t.rows.weight[r] * of_row[v];
  }
  for (int v = 0; v < kPairs; ++v) store_pair(out + c + v * kWidth, sum[2 * v], sum[2 * v + 1]);
}

// [H, W, C]: a bin is a weighted sum of a few contiguous runs of channels.
template <typename T>
void roi_align_forward(const RoITile<const T, T>& t) {
  using A = accumulate_t<T>;
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t bin = 0; bin < t.rows.pooled * t.cols.pooled; ++bin) {
    const int64_t ph = bin / t.cols.pooled, pw = bin % t.cols.pooled;
    T* out = t.pooled + bin * t.channels;
    int64_t c = 0;
    for (; c + 4 * kWidth <= t.channels; c += 4 * kWidth) pool_channels<2>(t, ph, pw, c, out);
    for (; c + 2 * kWidth <= t.channels; c += 2 * kWidth) pool_channels<1>(t, ph, pw, c, out);
    for (; c < t.channels; c += kWidth) {
      const int64_t n = t.channels - c < kWidth ? t.channels - c : kWidth;
      Vector<A> sum{};
      for (int32_t r = t.rows.begin[ph]; r < t.rows.begin[ph + 1]; ++r) {
        const T* row = t.map + t.rows.index[r] * t.width * t.channels + c;
        Vector<A> of_row{};
        for (int32_t k = t.cols.begin[pw]; k < t.cols.begin[pw + 1]; ++k) {
          of_row += t.cols.weight[k] * load_part(row + t.cols.index[k] * t.channels, n);
        }
        sum += t.rows.weight[r] * of_row;
      }
      store_part(out + c, sum, n);
    }
  }
}

// The reverse; adds to the map. By value: see spread_planes in ps_roi_align.inl.
template <typename T, typename A>
void roi_align_backward(const RoITile<A, const T>& tile) {
  const RoITile<A, const T> t = tile;
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t ph = 0; ph < t.rows.pooled; ++ph) {
    for (int32_t r = t.rows.begin[ph]; r < t.rows.begin[ph + 1]; ++r) {
      const int64_t y = t.rows.index[r];
      if (y < t.row_begin || y >= t.row_end) continue;
      const T* grad = t.pooled + ph * t.cols.pooled * t.channels;
      for (int64_t pw = 0; pw < t.cols.pooled; ++pw, grad += t.channels) {
        for (int32_t k = t.cols.begin[pw]; k < t.cols.begin[pw + 1]; ++k) {
          const Vector<A> weight = splat(t.rows.weight[r] * t.cols.weight[k]);
          A* to = t.map + ((y - t.row_begin) * t.width + t.cols.index[k]) * t.channels;
          for (int64_t c = 0; c < t.channels; c += kWidth) {
            const int64_t n = t.channels - c;
            store_first(to + c, fused(weight, load_first(grad + c, n), load_first(to + c, n)), n);
          }
        }
      }
    }
  }
}

// A matrix of which each row is `length` numbers, a multiple of kRoIChannels.
template <typename A>
struct Rows {
  A* data;
  int64_t stride;
};

template <int kTaps, bool kAdd, typename A>
DETOPS_INLINE void combine_taps(Rows<A> out, Rows<const A> in, const int32_t* index, int64_t origin,
                                int64_t step, const A* weight, int64_t rows, int64_t length) {
  constexpr int64_t kWidth = kLanes<A>;
  const A* from[kTaps];
  for (int k = 0; k < kTaps; ++k) from[k] = in.data + (index[k] - origin) * step;
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

// One output position of a rule, for many numbers at once: row by row, `out` becomes (kAdd: grows
// by) the sum over the taps of weight * the row of `in` that lies (index - origin) * step further
// on. The number of taps is settled outside of the inner loops, where it would be mispredicted.
template <bool kAdd, typename A>
DETOPS_INLINE void combine(Rows<A> out, Rows<const A> in, const AxisRule<A>& rule, int64_t position,
                           int64_t origin, int64_t step, int64_t rows, int64_t length) {
  const int32_t begin = rule.begin[position];
  const int32_t* index = rule.index + begin;
  const A* weight = rule.weight + begin;
  const int32_t taps = rule.begin[position + 1] - begin;
  switch (taps) {
    case 0:
      if (!kAdd) combine_taps<0, false>(out, in, index, origin, step, weight, rows, length);
      return;
    case 1:
      return combine_taps<1, kAdd>(out, in, index, origin, step, weight, rows, length);
    case 2:
      return combine_taps<2, kAdd>(out, in, index, origin, step, weight, rows, length);
    case 3:
      return combine_taps<3, kAdd>(out, in, index, origin, step, weight, rows, length);
  }
  combine_taps<4, kAdd>(out, in, index, origin, step, weight, rows, length);
  for (int32_t k = 4; k < taps; ++k) {
    combine_taps<1, true>(out, in, index + k, origin, step, weight + k, rows, length);
  }
}

// Lanes: first the rows of the map are combined to [pooled rows, columns], then the columns.
template <typename A>
void roi_align_forward_lanes(const RoILanes<A>& t, A* pooled) {
  const int64_t stride = t.cols.extent * kRoIChannels, bins_stride = t.cols.pooled * kRoIChannels;
  const A* map = t.map + (t.cols.first - t.col_origin) * kRoIChannels;
  for (int64_t ph = 0; ph < t.rows.pooled; ++ph) {
    combine<false>(Rows<A>{t.scratch + ph * stride, 0}, Rows<const A>{map, 0}, t.rows, ph,
                   t.row_origin, t.row_stride, 1, stride);
  }
  for (int64_t pw = 0; pw < t.cols.pooled; ++pw) {
    combine<false>(Rows<A>{pooled + pw * kRoIChannels, bins_stride},
                   Rows<const A>{t.scratch, stride}, t.cols, pw, t.cols.first, kRoIChannels,
                   t.rows.pooled, kRoIChannels);
  }
}

// The reverse, with transposed rules; adds to the map.
template <typename A>
void roi_align_backward_lanes(const RoILanes<A>& t, const A* pooled) {
  const int64_t stride = t.cols.extent * kRoIChannels, bins_stride = t.cols.pooled * kRoIChannels;
  for (int64_t x = 0; x < t.cols.extent; ++x) {
    combine<false>(Rows<A>{t.scratch + x * kRoIChannels, stride},
                   Rows<const A>{pooled, bins_stride}, t.cols, x, 0, kRoIChannels, t.rows.pooled,
                   kRoIChannels);
  }
  A* map = t.map + (t.cols.first - t.col_origin) * kRoIChannels;
  for (int64_t y = 0; y < t.rows.extent; ++y) {
    A* row = map + (t.rows.first + y - t.row_origin) * t.row_stride;
    combine<true>(Rows<A>{row, 0}, Rows<const A>{t.scratch, 0}, t.rows, y, 0, stride, 1, stride);
  }
}

template <typename T>
constexpr RoIAlignKernels<T> kRoIAlignKernels{kLanes<accumulate_t<T>>,
                                              roi_align_forward<T>,
                                              roi_align_backward<T, accumulate_t<T>>,
                                              roi_align_forward_planes<T>,
                                              roi_align_backward_planes<T, accumulate_t<T>>,
                                              roi_align_forward_lanes<accumulate_t<T>>,
                                              roi_align_backward_lanes<accumulate_t<T>>,
                                              planes_to_lanes<T>,
                                              lanes_to_planes<T>,
                                              rows_to_lanes<T>,
                                              lanes_to_rows<T>};
