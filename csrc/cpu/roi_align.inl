// SPDX-License-Identifier: MIT
// Included once per instruction set; see isa.h. One call works on one RoI and a run of channels
// that are neighbours in memory; maps and tiles in another layout go through transpose.inl first.

// Channels [c, c + kVectors * lanes) of one bin: the rule's rows of its columns, in registers.
template <int kVectors, typename In, typename Out>
DETOPS_INLINE void pool_channels(const RoITile<In, Out>& t, int64_t ph, int64_t pw, int64_t c,
                                 Out* out) {
  using A = accumulate_t<In>;
  constexpr int64_t kWidth = kLanes<A>;
  Vector<A> sum[kVectors] = {};
  for (int32_t r = t.rows.begin[ph]; r < t.rows.begin[ph + 1]; ++r) {
    const In* row = t.map + (t.rows.index[r] - t.row_origin) * t.row_stride + c;
    Vector<A> of_row[kVectors] = {};
    for (int32_t k = t.cols.begin[pw]; k < t.cols.begin[pw + 1]; ++k) {
      const In* p = row + (t.cols.index[k] - t.col_origin) * t.col_stride;
      for (int v = 0; v < kVectors; ++v) of_row[v] += t.cols.weight[k] * load(p + v * kWidth);
    }
    for (int v = 0; v < kVectors; ++v) sum[v] += t.rows.weight[r] * of_row[v];
  }
  for (int v = 0; v < kVectors; ++v) store(out + c + v * kWidth, sum[v]);
}

template <typename In, typename Out>
void roi_align_forward(const RoITile<In, Out>& t) {
  using A = accumulate_t<In>;
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t bin = 0; bin < t.rows.pooled * t.cols.pooled; ++bin) {
    const int64_t ph = bin / t.cols.pooled, pw = bin % t.cols.pooled;
    Out* out = t.pooled + bin * t.bin_stride;
    int64_t c = 0;
    for (; c + 4 * kWidth <= t.channels; c += 4 * kWidth) pool_channels<4>(t, ph, pw, c, out);
    for (; c + 2 * kWidth <= t.channels; c += 2 * kWidth) pool_channels<2>(t, ph, pw, c, out);
    for (; c + kWidth <= t.channels; c += kWidth) pool_channels<1>(t, ph, pw, c, out);
    if (c == t.channels) continue;
    const int64_t n = t.channels - c;
    Vector<A> sum{};
    for (int32_t r = t.rows.begin[ph]; r < t.rows.begin[ph + 1]; ++r) {
      const In* row = t.map + (t.rows.index[r] - t.row_origin) * t.row_stride + c;
      Vector<A> of_row{};
      for (int32_t k = t.cols.begin[pw]; k < t.cols.begin[pw + 1]; ++k) {
        const In* p = row + (t.cols.index[k] - t.col_origin) * t.col_stride;
        of_row += t.cols.weight[k] * load_part(p, n);
      }
      sum += t.rows.weight[r] * of_row;
    }
    store_part(out + c, sum, n);
  }
}

template <int kVectors, typename A>
DETOPS_INLINE void spread_channels(const RoIGradTile<A>& t, int64_t y, int64_t x, int64_t c,
                                   A* map) {
  constexpr int64_t kWidth = kLanes<A>;
  Vector<A> sum[kVectors];
  for (int v = 0; v < kVectors; ++v) sum[v] = load(map + c + v * kWidth);
  for (int32_t r = t.rows.begin[y]; r < t.rows.begin[y + 1]; ++r) {
    const A* row = t.pooled + t.rows.index[r] * t.cols.pooled * kRoIChannels + c;
    for (int32_t k = t.cols.begin[x]; k < t.cols.begin[x + 1]; ++k) {
      const A* p = row + t.cols.index[k] * kRoIChannels;
      const A weight = t.rows.weight[r] * t.cols.weight[k];
      for (int v = 0; v < kVectors; ++v) sum[v] += weight * load(p + v * kWidth);
    }
  }
  for (int v = 0; v < kVectors; ++v) store(map + c + v * kWidth, sum[v]);
}

// Each position of the map that the RoI touches is read and written once.
template <typename A>
void roi_align_backward(const RoIGradTile<A>& t) {
  constexpr int64_t kVectors = kRoIChannels / kLanes<A>;
  constexpr int kAtOnce = kVectors < 4 ? kVectors : 4;
  for (int64_t y = 0; y < t.rows.extent; ++y) {
    if (t.rows.begin[y] == t.rows.begin[y + 1]) continue;
    A* row = t.map + (t.rows.first + y - t.row_origin) * t.row_stride;
    for (int64_t x = 0; x < t.cols.extent; ++x) {
      if (t.cols.begin[x] == t.cols.begin[x + 1]) continue;
      A* map = row + (t.cols.first + x - t.col_origin) * kRoIChannels;
      for (int64_t c = 0; c < t.channels; c += kAtOnce * kLanes<A>) {
        spread_channels<kAtOnce>(t, y, x, c, map);
      }
    }
  }
}
