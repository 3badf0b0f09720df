// SPDX-License-Identifier: MIT
// Included once per instruction set; see isa.h. One call works on one RoI.

// [H, W, C]: a bin is a weighted sum of a few contiguous runs of channels, held in registers.
template <typename T>
void roi_align_forward_channels_last(const RoITile<T>& t) {
  using A = accumulate_t<T>;
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t bin = 0; bin < t.rows.pooled * t.cols.pooled; ++bin) {
    const int64_t ph = bin / t.cols.pooled, pw = bin % t.cols.pooled;
    const int32_t r0 = t.rows.begin[ph], r1 = t.rows.begin[ph + 1];
    const int32_t c0 = t.cols.begin[pw], c1 = t.cols.begin[pw + 1];
    T* out = t.pooled + bin * t.channels;
    int64_t c = t.channel_begin;
    for (; c + 4 * kWidth <= t.channel_end; c += 4 * kWidth) {
      Vector<A> s0{}, s1{}, s2{}, s3{};
      for (int32_t r = r0; r < r1; ++r) {
        const T* row = t.map + int64_t(t.rows.index[r]) * t.width * t.channels + c;
        for (int32_t k = c0; k < c1; ++k) {
          const T* p = row + int64_t(t.cols.index[k]) * t.channels;
          const A weight = t.rows.weight[r] * t.cols.weight[k];
          s0 += weight * load(p);
          s1 += weight * load(p + kWidth);
          s2 += weight * load(p + 2 * kWidth);
          s3 += weight * load(p + 3 * kWidth);
        }
      }
      store(out + c, s0);
      store(out + c + kWidth, s1);
      store(out + c + 2 * kWidth, s2);
      store(out + c + 3 * kWidth, s3);
    }
    for (; c < t.channel_end; c += kWidth) {
      const int64_t n = t.channel_end - c;
      Vector<A> sum{};
      for (int32_t r = r0; r < r1; ++r) {
        const T* row = t.map + int64_t(t.rows.index[r]) * t.width * t.channels + c;
        for (int32_t k = c0; k < c1; ++k) {
          const T* p = row + int64_t(t.cols.index[k]) * t.channels;
          sum += t.rows.weight[r] * t.cols.weight[k] * (n < kWidth ? load_part(p, n) : load(p));
        }
      }
      if (n < kWidth) {
        store_part(out + c, sum, n);
      } else {
        store(out + c, sum);
      }
    }
  }
}

// [C, H, W]: per channel and row of bins, first the rows of the map are combined over the RoI's
// window (contiguous), then the columns of that one buffer.
template <typename T>
void roi_align_forward(const RoITile<T>& t) {
  using A = accumulate_t<T>;
  constexpr int64_t kWidth = kLanes<A>;
  const int64_t plane = t.height * t.width, bins = t.rows.pooled * t.cols.pooled;
  for (int64_t c = t.channel_begin; c < t.channel_end; ++c) {
    const T* map = t.map + c * plane;
    const T* end = map + plane;
    T* out = t.pooled + c * bins;
    for (int64_t ph = 0; ph < t.rows.pooled; ++ph) {
      for (int64_t x = 0; x < t.cols.extent; x += kWidth) {
        Vector<A> sum{};
        for (int32_t r = t.rows.begin[ph]; r < t.rows.begin[ph + 1]; ++r) {
          const T* p = map + int64_t(t.rows.index[r]) * t.width + t.cols.first + x;
          sum += t.rows.weight[r] * (p + kWidth <= end ? load(p) : load_part(p, end - p));
        }
        store(t.scratch + x, sum);
      }
      for (int64_t pw = 0; pw < t.cols.pooled; ++pw) {
        A sum = 0;
        for (int32_t k = t.cols.begin[pw]; k < t.cols.begin[pw + 1]; ++k) {
          sum += t.cols.weight[k] * t.scratch[t.cols.index[k] - t.cols.first];
        }
        math::from_float(sum, out[ph * t.cols.pooled + pw]);
      }
    }
  }
}

// [H, W, C]: each position of the map that the RoI touches is read and written once.
template <typename A>
void roi_align_backward_channels_last(const RoIGradTile<A>& t) {
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t y = 0; y < t.rows.extent; ++y) {
    const int32_t r0 = t.rows.begin[y], r1 = t.rows.begin[y + 1];
    if (r0 == r1) continue;
    for (int64_t x = 0; x < t.cols.extent; ++x) {
      const int32_t c0 = t.cols.begin[x], c1 = t.cols.begin[x + 1];
      if (c0 == c1) continue;
      A* out = t.map + ((t.rows.first + y) * t.width + t.cols.first + x) * t.channels;
      for (int64_t c = t.channel_begin; c < t.channel_end; c += kWidth) {
        const int64_t n = t.channel_end - c;
        Vector<A> sum = n < kWidth ? load_part(out + c, n) : load(out + c);
        for (int32_t r = r0; r < r1; ++r) {
          const A* row = t.pooled + int64_t(t.rows.index[r]) * t.cols.pooled * t.channels + c;
          for (int32_t k = c0; k < c1; ++k) {
            const A* p = row + int64_t(t.cols.index[k]) * t.channels;
            sum += t.rows.weight[r] * t.cols.weight[k] * (n < kWidth ? load_part(p, n) : load(p));
          }
        }
        if (n < kWidth) {
          store_part(out + c, sum, n);
        } else {
          store(out + c, sum);
        }
      }
    }
  }
}

// [C, H, W]: the forward pass in reverse, columns into a buffer of [pooled rows, window], then
// rows.
template <typename A>
void roi_align_backward(const RoIGradTile<A>& t) {
  constexpr int64_t kWidth = kLanes<A>;
  const int64_t plane = t.height * t.width, bins = t.rows.pooled * t.cols.pooled;
  const int64_t stride = t.cols.extent + kRoIPadding;
  for (int64_t c = t.channel_begin; c < t.channel_end; ++c) {
    const A* grad = t.pooled + c * bins;
    A* map = t.map + c * plane;
    const A* end = map + plane;
    for (int64_t ph = 0; ph < t.rows.pooled; ++ph) {
      A* buffer = t.scratch + ph * stride;
      for (int64_t x = 0; x < t.cols.extent; ++x) {
        A sum = 0;
        for (int32_t k = t.cols.begin[x]; k < t.cols.begin[x + 1]; ++k) {
          sum += t.cols.weight[k] * grad[ph * t.cols.pooled + t.cols.index[k]];
        }
        buffer[x] = sum;
      }
      for (int64_t x = t.cols.extent; x < stride; ++x) buffer[x] = 0;
    }
    for (int64_t y = 0; y < t.rows.extent; ++y) {
      if (t.rows.begin[y] == t.rows.begin[y + 1]) continue;
      A* row = map + (t.rows.first + y) * t.width + t.cols.first;
      for (int64_t x = 0; x < t.cols.extent; x += kWidth) {
        A* p = row + x;
        const bool whole = p + kWidth <= end;
        Vector<A> sum = whole ? load(p) : load_part(p, end - p);
        for (int32_t r = t.rows.begin[y]; r < t.rows.begin[y + 1]; ++r) {
          sum += t.rows.weight[r] * load(t.scratch + t.rows.index[r] * stride + x);
        }
        if (whole) {
          store(p, sum);
        } else {
          store_part(p, sum, end - p);
        }
      }
    }
  }
}
