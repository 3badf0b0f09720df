// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One call works on one RoI.

#include "lanes.inl"

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

template <bool kWhole, typename T>
DETOPS_INLINE Vector<accumulate_t<T>> load_channels(const T* p, int64_t n) {
  if constexpr (kWhole) return load(p);
  return load_part(p, n);
}

// One bin that is not empty, for n channels from c on: kVectors full vectors, or one that is not.
template <int kVectors, bool kWhole, typename T>
DETOPS_INLINE void pool_bin(const RoIPoolTile<T>& t, int64_t bin, math::PixelRange rows,
                            math::PixelRange cols, int64_t c, int64_t n) {
  using A = accumulate_t<T>;
  using I = lane_index_t<A>;
  constexpr int64_t kWidth = kLanes<A>;
  const T* map = t.map + (rows.begin - t.row_origin) * t.row_stride +
                 (cols.begin - t.col_origin) * t.col_stride + c;
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
        const Vector<A> value = load_channels<kWhole>(p + v * kWidth, n);
        const auto exceeds = value > best[v];  // see math::exceeds
        best[v] = exceeds ? value : best[v];
        index[v] = exceeds ? here : index[v];
      }
    }
  }
  const Vector<I> first = splat<I>(static_cast<I>(rows.begin * t.width + cols.begin));
  for (int v = 0; v < kVectors; ++v) {
    const auto none = index[v] < 0;
    best[v] = none ? load_channels<kWhole>(map + v * kWidth, n) : best[v];
    index[v] = none ? first : index[v];
    T* out = t.pooled + bin * t.bin_stride + c + v * kWidth;
    if constexpr (kWhole) {
      store(out, best[v]);
    } else {
      store_part(out, best[v], n);
    }
    store_indices(t.argmax + bin * t.bin_stride + c + v * kWidth, index[v], n);
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
    for (; c + 4 * kWidth <= t.channels; c += 4 * kWidth) {
      pool_bin<4, true>(t, bin, rows, cols, c, kWidth);
    }
    for (; c + 2 * kWidth <= t.channels; c += 2 * kWidth) {
      pool_bin<2, true>(t, bin, rows, cols, c, kWidth);
    }
    for (; c + kWidth <= t.channels; c += kWidth) {
      pool_bin<1, true>(t, bin, rows, cols, c, kWidth);
    }
    if (c < t.channels) pool_bin<1, false>(t, bin, rows, cols, c, t.channels - c);
  }
}

template <typename T>
constexpr RoIPoolKernels<T> kRoIPoolKernels{roi_pool_forward<T>, lanes_to_planes<int32_t>};
