// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One call works on one RoI.

typedef int32_t Indices __attribute__((vector_size(DETOPS_VECTOR_BYTES / 2)));

DETOPS_INLINE void store_indices(int32_t* p, Vector<int32_t> v, int64_t n) { store_first(p, v, n); }

DETOPS_INLINE void store_indices(int32_t* p, Vector<int64_t> v, int64_t n) {
  const Indices narrow = __builtin_convertvector(v, Indices);
  if (n >= kLanes<int64_t>) {
    __builtin_memcpy(p, &narrow, sizeof narrow);
  } else {
    for (int64_t i = 0; i < n; ++i) p[i] = narrow[i];
  }
}

// One bin that is not empty, for n channels from c on: kVectors full vectors, or one that is not.
template <int kVectors, bool kWhole = true, typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void pool_bin(const RoIPoolTile<T>& t, int64_t bin, math::PixelRange rows,
                            math::PixelRange cols, int64_t c, int64_t n = kLanes<A>) {
  using I = lane_index_t<A>;
  constexpr int64_t kWidth = kLanes<A>;
  const T* map = t.map + rows.begin * t.row_stride + cols.begin * t.col_stride + c;
  Vector<A> best[kVectors];
  Vector<I> index[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    best[v] = splat<A>(-A(__builtin_inf()));
    index[v] = splat<I>(-1);
  }
  const T* row = map;
  for (int64_t y = rows.begin; y < rows.end; ++y, row += t.row_stride) {
    const T* p = row;
    for (int64_t x = cols.begin; x < cols.end; ++x, p += t.col_stride) {
      const Vector<I> here = splat<I>(static_cast<I>(y * t.width + x));
      for (int v = 0; v < kVectors; ++v) {
        const T* from = p + v * kWidth;
        const Vector<A> value = kWhole ? load(from) : load_part(from, n);
        const auto exceeds = value > best[v];  // see math::exceeds
        best[v] = exceeds ? value : best[v];
        index[v] = exceeds ? here : index[v];
      }
    }
  }
  const Vector<I> first = splat<I>(static_cast<I>(rows.begin * t.width + cols.begin));
  for (int v = 0; v < kVectors; ++v) {
    const auto none = index[v] < 0;
    const T* from = map + v * kWidth;
    const Vector<A> of_first = kWhole ? load(from) : load_part(from, n);
    best[v] = none ? of_first : best[v];
    index[v] = none ? first : index[v];
    const int64_t to = bin * t.bin_stride + c + v * kWidth;
    store_first(t.pooled + to, best[v], n);
    store_indices(t.argmax + to, index[v], n);
  }
}

template <typename T>
void roi_pool_forward(const RoIPoolTile<T>& t) {
  constexpr int64_t kWidth = kLanes<accumulate_t<T>>;
  for (int64_t bin = 0; bin < t.pooled_height * t.pooled_width; ++bin) {
    const math::PixelRange rows = t.rows[bin / t.pooled_width], cols = t.cols[bin % t.pooled_width];
    if (rows.begin == rows.end || cols.begin == cols.end) {
      for (int64_t c = 0; c < t.channels; ++c) {
        t.pooled[bin * t.bin_stride + c] = T{};
        t.argmax[bin * t.bin_stride + c] = -1;
      }
      continue;
    }
    int64_t c = 0;
    for (; c + 4 * kWidth <= t.channels; c += 4 * kWidth) pool_bin<4>(t, bin, rows, cols, c);
    for (; c + 2 * kWidth <= t.channels; c += 2 * kWidth) pool_bin<2>(t, bin, rows, cols, c);
    for (; c + kWidth <= t.channels; c += kWidth) pool_bin<1>(t, bin, rows, cols, c);
    if (c < t.channels) pool_bin<1, false>(t, bin, rows, cols, c, t.channels - c);
  }
}

// One bin of one channel, at least a vector wide. Lanes see pixels in order, so the first of equals
// stays in each.
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE A pool_wide_bin(const RoIPoolTile<T>& t, const T* map, math::PixelRange rows,
                              math::PixelRange cols, int32_t& argmax) {
  using I = lane_index_t<A>;
  constexpr int64_t kWidth = kLanes<A>;
  Vector<A> best = splat<A>(-A(__builtin_inf()));
  Vector<I> index = splat<I>(-1), steps;
  for (int64_t i = 0; i < kWidth; ++i) steps[i] = static_cast<I>(i);
  for (int64_t y = rows.begin; y < rows.end; ++y) {
    for (int64_t i = cols.begin; i < cols.end; i += kWidth) {
      const int64_t x = i + kWidth <= cols.end ? i : cols.end - kWidth;  // the last one overlaps
      const int64_t at = y * t.width + x;
      const Vector<A> value = load(map + at);
      const auto exceeds = value > best;  // see math::exceeds
      best = exceeds ? value : best;
      index = exceeds ? steps + splat<I>(static_cast<I>(at)) : index;
    }
  }
  A most = -A(__builtin_inf());
  I where = -1;
  for (int64_t i = 0; i < kWidth; ++i) {
    const bool better = best[i] > most || (best[i] == most && index[i] < where);
    if (index[i] >= 0 && (where < 0 || better)) most = best[i], where = index[i];
  }
  argmax = static_cast<int32_t>(where);
  return most;
}

// One bin of kPlanes channels, less than a vector wide: what the comparisons of one channel wait
// for, those of the others fill.
template <int kPlanes, typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void pool_narrow_bin(const RoIPoolTile<T>& t, const T* map, math::PixelRange rows,
                                   math::PixelRange cols, A* best, int32_t* argmax) {
  A most[kPlanes];
  int32_t where[kPlanes];
  DETOPS_UNROLL for (int j = 0; j < kPlanes; ++j) most[j] = -A(__builtin_inf()), where[j] = -1;
  for (int64_t y = rows.begin; y < rows.end; ++y) {
    for (int64_t x = cols.begin; x < cols.end; ++x) {
      const int64_t at = y * t.width + x;
      DETOPS_UNROLL for (int j = 0; j < kPlanes; ++j) {
        const A value = math::to_float(map[j * t.channel_stride + at]);
        const bool exceeds = math::exceeds(value, most[j]);
        most[j] = exceeds ? value : most[j];
        where[j] = exceeds ? static_cast<int32_t>(at) : where[j];
      }
    }
  }
  DETOPS_UNROLL for (int j = 0; j < kPlanes; ++j) best[j] = most[j], argmax[j] = where[j];
}

// One bin of kPlanes channels; the numbers of the next channel lie `bins` further on.
template <int kPlanes, typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void pool_bin_of_planes(const RoIPoolTile<T>& t, const T* map, math::PixelRange rows,
                                      math::PixelRange cols, T* pooled, int32_t* argmax,
                                      int64_t bins) {
  if (rows.begin == rows.end || cols.begin == cols.end) {
    for (int j = 0; j < kPlanes; ++j) pooled[j * bins] = T{}, argmax[j * bins] = -1;
    return;
  }
  A most[kPlanes];
  int32_t where[kPlanes];
  if (cols.size() >= kLanes<A>) {
    for (int j = 0; j < kPlanes; ++j) {
      most[j] = pool_wide_bin(t, map + j * t.channel_stride, rows, cols, where[j]);
    }
  } else {
    pool_narrow_bin<kPlanes>(t, map, rows, cols, most, where);
  }
  DETOPS_UNROLL for (int j = 0; j < kPlanes; ++j) {
    if (where[j] < 0) {
      where[j] = static_cast<int32_t>(rows.begin * t.width + cols.begin);
      most[j] = math::to_float(map[j * t.channel_stride + where[j]]);
    }
    math::from_float(most[j], pooled[j * bins]);
    argmax[j * bins] = where[j];
  }
}

// Channels [c, c + kPlanes). A bin smaller than a pixel often has the pixels of the one before.
template <int kPlanes, typename T>
DETOPS_INLINE void pool_planes(const RoIPoolTile<T>& t, int64_t c) {
  const T* map = t.map + c * t.channel_stride;
  const int64_t width = t.pooled_width, bins = t.pooled_height * width;
  T* pooled = t.pooled + c * bins;
  int32_t* argmax = t.argmax + c * bins;
  for (int64_t ph = 0; ph < t.pooled_height; ++ph, pooled += width, argmax += width) {
    const math::PixelRange rows = t.rows[ph];
    const bool as_above = ph > 0 && math::same(rows, t.rows[ph - 1]);
    for (int64_t pw = 0; pw < width; ++pw) {
      const math::PixelRange cols = t.cols[pw];
      if (!as_above && (pw == 0 || !math::same(cols, t.cols[pw - 1]))) {
        pool_bin_of_planes<kPlanes>(t, map, rows, cols, pooled + pw, argmax + pw, bins);
        continue;
      }
      const int64_t from = pw - (as_above ? width : 1);
      DETOPS_UNROLL for (int j = 0; j < kPlanes; ++j) {
        pooled[j * bins + pw] = pooled[j * bins + from];
        argmax[j * bins + pw] = argmax[j * bins + from];
      }
    }
  }
}

// One RoI on planes as they are: a vector holds neighbours of one row.
template <typename T>
void roi_pool_forward_planes(const RoIPoolTile<T>& planes) {
  const RoIPoolTile<T> t = planes;  // what is stored through a number could be a member
  int64_t c = 0;
  for (; c + 4 <= t.channels; c += 4) pool_planes<4>(t, c);
  for (; c < t.channels; ++c) pool_planes<1>(t, c);
}
