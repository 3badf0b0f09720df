// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Places and weights are computed for as many
// samples at a time as a vector has lanes; values and their gradients are vectors over channels.

// For numbers that an integer of their width holds.
template <typename T>
DETOPS_INLINE Vector<T> floor_lanes(Vector<T> x) {
  const Vector<lane_index_t<T>> whole = __builtin_convertvector(x, Vector<lane_index_t<T>>);
  const Vector<T> toward_zero = __builtin_convertvector(whole, Vector<T>);
  return toward_zero > x ? toward_zero - T(1) : toward_zero;
}
DETOPS_INLINE Vector<float> floor(Vector<float> x) { return floor_lanes<float>(x); }
DETOPS_INLINE Vector<double> floor(Vector<double> x) { return floor_lanes<double>(x); }

#include "../../math/ms_deform_attn.inl"

template <typename A>
DETOPS_INLINE Vector<lane_index_t<A>> load_index(const lane_index_t<A>* p) {
  Vector<lane_index_t<A>> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// A vector of samples, and where each finds its four corners.
template <typename A>
struct SampleLanes {
  attention::Place<Vector<A>> place;
  Vector<A> weight, width, height;
  int64_t count;
  lane_index_t<A> position[4][kLanes<A>];
  A share[4][kLanes<A>];  // of the attention weight
};

template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void place_samples(const AttentionHead<T>& h, const A* locations, const A* weights,
                                 int64_t first, SampleLanes<A>& s) {
  using I = Vector<lane_index_t<A>>;
  constexpr int64_t kWidth = kLanes<A>;
  const int64_t left = h.samples - first;
  s.count = left < kWidth ? left : kWidth;
  const A* at = locations + 2 * first;
  Vector<A> x = load_first(at, 2 * left);
  Vector<A> y = 2 * left > kWidth ? load_first(at + kWidth, 2 * left - kWidth) : Vector<A>{};
  unzip<A>(x, y, typename FirstLanes<kLanes<A>>::type{});
  const I width = load_index<A>(h.width + first), height = load_index<A>(h.height + first);
  s.width = __builtin_convertvector(width, Vector<A>);
  s.height = __builtin_convertvector(height, Vector<A>);
  s.weight = load_first(weights + first, left);
  s.place = attention::place<A>(x, y, s.width, s.height);
  const attention::Corners<I> positions = attention::positions(
      __builtin_convertvector(s.place.x, I), __builtin_convertvector(s.place.y, I), width, height,
      load_index<A>(h.start + first));
  const attention::Corners<Vector<A>> shares = attention::shares<A>(s.place);
  for (int k = 0; k < 4; ++k) {
    __builtin_memcpy(s.position[k], &positions.at[k], sizeof(I));
    store(s.share[k], shares.at[k] * s.weight);
  }
}

template <typename T>
DETOPS_INLINE const T* row_at(const AttentionHead<T>& h, int64_t position) {
  return position < 0 ? h.zeros : h.value + position * h.stride;
}

// Channels from c on: as many as kVectors hold, or n at the end, in a single vector.
template <int kVectors, typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void add_samples(const AttentionHead<T>& h, const SampleLanes<A>& s, int64_t c,
                               int64_t n, A* sum) {
  constexpr int64_t kWidth = kLanes<A>;
  // Two sums each: a sum waits for its last addition.
  Vector<A> upper[kVectors], lower[kVectors];
  DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) {
    upper[v] = load(sum + c + v * kWidth);
    lower[v] = Vector<A>{};
  }
  for (int64_t i = 0; i < s.count; ++i) {
    DETOPS_UNROLL for (int k = 0; k < 2; ++k) {
      const T* high = row_at(h, s.position[k][i]) + c;
      const T* low = row_at(h, s.position[k + 2][i]) + c;
      const Vector<A> high_share = splat(s.share[k][i]), low_share = splat(s.share[k + 2][i]);
      DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) {
        const T *a = high + v * kWidth, *b = low + v * kWidth;
        upper[v] = fused(high_share, kVectors > 1 ? load(a) : load_first(a, n), upper[v]);
        lower[v] = fused(low_share, kVectors > 1 ? load(b) : load_first(b, n), lower[v]);
      }
    }
  }
  DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) {
    store(sum + c + v * kWidth, upper[v] + lower[v]);
  }
}

template <typename T>
void ms_deform_attn_forward(const AttentionHead<T>& h, const accumulate_t<T>* locations,
                            const accumulate_t<T>* weights, T* output, accumulate_t<T>* sum) {
  using A = accumulate_t<T>;
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t c = 0; c < h.channels; c += kWidth) store(sum + c, Vector<A>{});
  for (int64_t first = 0; first < h.samples; first += kWidth) {
    SampleLanes<A> s;
    place_samples(h, locations, weights, first, s);
    int64_t c = 0;
    for (; c + 4 * kWidth <= h.channels; c += 4 * kWidth) add_samples<4>(h, s, c, 0, sum);
    for (; c + 2 * kWidth <= h.channels; c += 2 * kWidth) add_samples<2>(h, s, c, 0, sum);
    for (; c < h.channels; c += kWidth) add_samples<1>(h, s, c, h.channels - c, sum);
  }
  for (int64_t c = 0; c < h.channels; c += kWidth) {
    store_first(output + c, load(sum + c), h.channels - c);
  }
}

template <typename T>
void ms_deform_attn_backward(const AttentionHead<T>& h, const accumulate_t<T>* locations,
                             const accumulate_t<T>* weights, const T* grad,
                             accumulate_t<T>* to_value, accumulate_t<T>* to_locations,
                             accumulate_t<T>* to_weights, accumulate_t<T>* scratch) {
  using A = accumulate_t<T>;
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t c = 0; c < h.channels; c += kWidth) {
    store(scratch + c, load_first(grad + c, h.channels - c));
  }
  for (int64_t first = 0; first < h.samples; first += kWidth) {
    SampleLanes<A> s;
    place_samples(h, locations, weights, first, s);
    Vector<A> products[4][kWidth] = {};
    for (int64_t i = 0; i < s.count; ++i) {
      const T* value[4];
      A* to[4];
      Vector<A> share[4], product[4] = {};
      DETOPS_UNROLL for (int k = 0; k < 4; ++k) {
        value[k] = row_at(h, s.position[k][i]);
        to[k] = to_value + s.position[k][i] * h.row;
        share[k] = splat(s.share[k][i]);
      }
      for (int64_t c = 0; c < h.channels; c += kWidth) {
        const Vector<A> g = load(scratch + c);
        DETOPS_UNROLL for (int k = 0; k < 4; ++k) {
          product[k] = fused(g, load_first(value[k] + c, h.channels - c), product[k]);
          store(to[k] + c, fused(share[k], g, load(to[k] + c)));
        }
      }
      DETOPS_UNROLL for (int k = 0; k < 4; ++k) products[k][i] = product[k];
    }
    attention::Corners<Vector<A>> sums;
    DETOPS_UNROLL for (int k = 0; k < 4; ++k) sums.at[k] = sum_each<A>(products[k]);
    attention::Gradient<Vector<A>> to =
        attention::gradient<A>(s.place, s.weight, s.width, s.height, sums);
    store_first(to_weights + first, to.weight, s.count);
    zip<A>(to.x, to.y, typename FirstLanes<kLanes<A>>::type{});
    A* at = to_locations + 2 * first;
    store_first(at, to.x, 2 * s.count);
    if (2 * s.count > kWidth) store_first(at + kWidth, to.y, 2 * s.count - kWidth);
  }
}

template <typename T>
void store_attention_rows(const AttentionHead<T>& h, const accumulate_t<T>* to_value, int64_t count,
                          T* output) {
  constexpr int64_t kWidth = kLanes<accumulate_t<T>>;
  for (int64_t i = 0; i < count; ++i) {
    const accumulate_t<T>* row = to_value + i * h.row;
    T* out = output + i * h.stride;
    for (int64_t c = 0; c < h.channels; c += kWidth) {
      store_first(out + c, load(row + c), h.channels - c);
    }
  }
}

template <typename T>
constexpr AttentionKernels<T> kAttentionKernels{
    ms_deform_attn_forward<T>, ms_deform_attn_backward<T>, store_attention_rows<T>};
