// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Positions and weights are computed for a
// vector of samples at a time. Values and their gradients are vectors over channels.

#include "../../math/deform.inl"

// A vector of samples, and the positions of their four corners.
template <typename A>
struct SampleLanes {
  attention::SampleLocation<Vector<A>> place;
  Vector<A> weight, width, height;
  int64_t count;
  lane_index_t<A> position[4][kLanes<A>];
  A corner_weight[4][kLanes<A>];  // weight of the corner times the attention weight
};

template <typename A>
DETOPS_INLINE void locate_samples(const SampleLevels<A>& levels, const A* locations,
                                  const A* weights, int64_t first, SampleLanes<A>& s) {
  using I = Vector<lane_index_t<A>>;
  constexpr int64_t kWidth = kLanes<A>;
  const int64_t left = levels.samples - first;
  s.count = left < kWidth ? left : kWidth;
  Vector<A> x, y;
  load_unzipped(locations + 2 * first, left, x, y);
  const I width = load(levels.width + first), height = load(levels.height + first);
  s.width = __builtin_convertvector(width, Vector<A>);
  s.height = __builtin_convertvector(height, Vector<A>);
  s.weight = load_first(weights + first, left);
  s.place = attention::locate<A>(x, y, s.width, s.height);
  const attention::Corners<I> positions = attention::positions(
      __builtin_convertvector(s.place.x, I), __builtin_convertvector(s.place.y, I), width, height,
      load(levels.start + first));
  const attention::Corners<Vector<A>> corner_weights = attention::corner_weights<A>(s.place);
  for (int k = 0; k < 4; ++k) {
    store(s.position[k], positions.at[k]);
    store(s.corner_weight[k], corner_weights.at[k] * s.weight);
  }
}

template <typename T>
DETOPS_INLINE const T* values_at(const HeadValues<T>& h, int64_t position) {
  return position < 0 ? h.zeros : h.data + position * h.stride;
}

// Adds samples to the channels from c on: kVectors vectors, or the last n in a single vector.
template <int kVectors, typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void add_samples(const HeadValues<T>& h, const SampleLanes<A>& s, int64_t c,
                               int64_t n, A* sum) {
  constexpr int64_t kWidth = kLanes<A>;
  // Two sums per vector hide the latency of additions.
  Vector<A> upper[kVectors], lower[kVectors];
  DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) {
    upper[v] = load(sum + c + v * kWidth);
    lower[v] = Vector<A>{};
  }
  for (int64_t i = 0; i < s.count; ++i) {
    DETOPS_UNROLL for (int k = 0; k < 2; ++k) {
      const T* high = values_at(h, s.position[k][i]) + c;
      const T* low = values_at(h, s.position[k + 2][i]) + c;
      const Vector<A> high_weight = splat(s.corner_weight[k][i]),
                      low_weight = splat(s.corner_weight[k + 2][i]);
      DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) {
        const T *a = high + v * kWidth, *b = low + v * kWidth;
        upper[v] = fused(high_weight, kVectors > 1 ? load(a) : load_first(a, n), upper[v]);
        lower[v] = fused(low_weight, kVectors > 1 ? load(b) : load_first(b, n), lower[v]);
      }
    }
  }
  DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) {
    store(sum + c + v * kWidth, upper[v] + lower[v]);
  }
}

// Computes one head of one query. Locations are [samples, 2], weights [samples]. `sum` is scratch,
// [D] padded to whole vectors.
template <typename T, typename A = accumulate_t<T>>
void ms_deform_attn_forward(const SampleLevels<A>& levels, const HeadValues<T>& h,
                            const A* locations, const A* weights, T* output, A* sum) {
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t c = 0; c < h.channels; c += kWidth) store(sum + c, Vector<A>{});
  for (int64_t first = 0; first < levels.samples; first += kWidth) {
    SampleLanes<A> s;
    locate_samples(levels, locations, weights, first, s);
    int64_t c = 0;
    for (; c + 4 * kWidth <= h.channels; c += 4 * kWidth) add_samples<4>(h, s, c, 0, sum);
    for (; c + 2 * kWidth <= h.channels; c += 2 * kWidth) add_samples<2>(h, s, c, 0, sum);
    for (; c < h.channels; c += kWidth) add_samples<1>(h, s, c, h.channels - c, sum);
  }
  for (int64_t c = 0; c < h.channels; c += kWidth) {
    store_first(output + c, load(sum + c), h.channels - c);
  }
}

// Writes the gradients of locations and weights, and adds to those of the values.
template <typename A>
void ms_deform_attn_backward(const SampleLevels<A>& levels, const HeadRows<A>& rows,
                             const A* locations, const A* weights, const A* grad, A* to_locations,
                             A* to_weights) {
  constexpr int64_t kWidth = kLanes<A>;
  const int64_t padded = rows.padded;
  A* const data = rows.data;
  for (int64_t first = 0; first < levels.samples; first += kWidth) {
    SampleLanes<A> s;
    locate_samples(levels, locations, weights, first, s);
    Vector<A> products[4][kWidth];
    for (int64_t i = 0; i < s.count; ++i) {
      A* value[4];
      Vector<A> corner_weight[4], product[4] = {};
      DETOPS_UNROLL for (int k = 0; k < 4; ++k) {
        value[k] = data + s.position[k][i] * 2 * padded;
        corner_weight[k] = splat(s.corner_weight[k][i]);
      }
      for (int64_t c = 0; c < padded; c += kWidth) {
        const Vector<A> g = load_first(grad + c, rows.channels - c);
        DETOPS_UNROLL for (int k = 0; k < 4; ++k) {
          A* to = value[k] + padded + c;
          product[k] = fused(g, load(value[k] + c), product[k]);
          store(to, fused(corner_weight[k], g, load(to)));
        }
      }
      DETOPS_UNROLL for (int k = 0; k < 4; ++k) products[k][i] = product[k];
    }
    for (int64_t i = s.count; i < kWidth; ++i) {
      DETOPS_UNROLL for (int k = 0; k < 4; ++k) products[k][i] = Vector<A>{};
    }
    attention::Corners<Vector<A>> sums;
    DETOPS_UNROLL for (int k = 0; k < 4; ++k) sums.at[k] = sum_each<A>(products[k]);
    const attention::Gradient<Vector<A>> to =
        attention::gradient<A>(s.place, s.weight, s.width, s.height, sums);
    store_first(to_weights + first, to.weight, s.count);
    store_zipped(to_locations + 2 * first, s.count, to.x, to.y);
  }
}

// Rows to prefetch ahead. In a tensor of all heads, rows of one head are far apart; see prefetch.
constexpr int64_t kPrefetchRows = 16;

// Loads the values and sets the gradients to zero.
template <typename T, typename A = accumulate_t<T>>
void load_attention_rows(const HeadValues<T>& h, int64_t positions, const HeadRows<A>& rows) {
  for (int64_t i = -1; i < positions; ++i) {
    if (i + kPrefetchRows < positions) {
      prefetch(h.data + (i + kPrefetchRows) * h.stride, h.channels * sizeof(T));
    }
    const T* from = values_at(h, i);
    A* row = rows.data + i * 2 * rows.padded;
    for (int64_t c = 0; c < rows.padded; c += kLanes<A>) {
      store(row + c, load_first(from + c, h.channels - c));
      store(row + rows.padded + c, Vector<A>{});
    }
  }
}

template <typename T, typename A = accumulate_t<T>>
void store_attention_rows(const HeadRows<A>& rows, int64_t positions, const HeadValues<T>& like,
                          T* output) {
  for (int64_t i = 0; i < positions; ++i) {
    if (i + kPrefetchRows < positions) {
      prefetch<true>(output + (i + kPrefetchRows) * like.stride, like.channels * sizeof(T));
    }
    const A* row = rows.data + (2 * i + 1) * rows.padded;
    for (int64_t c = 0; c < like.channels; c += kLanes<A>) {
      store_first(output + i * like.stride + c, load(row + c), like.channels - c);
    }
  }
}
