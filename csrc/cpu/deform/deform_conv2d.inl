// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One call works on one tile of positions.

#include "../../math/deform.inl"

template <typename A>
DETOPS_INLINE deform::Sample<Vector<A>> sample_at(const DeformPoint<A>& t, int64_t i) {
  const int64_t n = t.positions - i;
  const Vector<A> y = (load_first(t.window_y + i, n) + t.y) + load_first(t.offset_y + i, n);
  const Vector<A> x = (load_first(t.window_x + i, n) + t.x) + load_first(t.offset_x + i, n);
  return deform::sample(y, x, t.min_coordinate, t.height, t.width);
}

template <typename A>
DETOPS_INLINE Vector<A> mask_at(const DeformPoint<A>& t, int64_t i) {
  return t.mask != nullptr ? load_first(t.mask + i, t.positions - i) : Vector<A>{} + 1;
}

template <typename A>
void deform_locate(const DeformPoint<A>& t, const DeformTaps<A>& taps) {
  using Pixels = Vector<lane_index_t<A>>;
  const lane_index_t<A> row = static_cast<lane_index_t<A>>(t.width) + 2;
  for (int64_t i = 0; i < t.positions; i += kLanes<A>) {
    const auto s = sample_at(t, i);
    const Pixels y = __builtin_convertvector(s.y, Pixels);
    store(taps.pixel + i, (y + 2) * row + (__builtin_convertvector(s.x, Pixels) + 1));
    const auto weight = deform::weights<A>(s, mask_at(t, i));
    for (int k = 0; k < 4; ++k) store(taps.weight[k] + i, weight.at[k]);
  }
}

// Corner offsets and weights of one sample.
template <typename A>
struct DeformSample {
  int64_t corner[4];
  Vector<A> weight[4];
};

template <typename A>
DETOPS_INLINE DeformSample<A> load_sample(const DeformBlock<A>& t, int64_t i) {
  const int64_t first = t.taps.pixel[i] * kRoIChannels + t.channel;
  const int64_t below = first + t.row * kRoIChannels;
  return {{first, first + kRoIChannels, below, below + kRoIChannels},
          {splat(t.taps.weight[0][i]), splat(t.taps.weight[1][i]), splat(t.taps.weight[2][i]),
           splat(t.taps.weight[3][i])}};
}

template <typename A>
DETOPS_INLINE Vector<A> blend(const DeformSample<A>& s, const Vector<A> (&value)[4]) {
  Vector<A> sum = s.weight[0] * value[0];
  for (int k = 1; k < 4; ++k) sum = fused(s.weight[k], value[k], sum);
  return sum;
}

// Returns `v` with all lanes from the n-th on replaced by `others`. In a partial vector of
// channels, the remaining lanes are read and written back unchanged. This is faster than going
// element by element.
template <bool kFull, typename T>
DETOPS_INLINE Vector<T> select_first(int64_t n, Vector<T> v, Vector<T> others) {
  if (kFull) return v;
  return lane_indices<T>() < static_cast<lane_index_t<T>>(n) ? v : others;
}

template <bool kScatter, bool kFull, typename A>
DETOPS_INLINE void process_samples(const DeformBlock<A>& t, A* grad_map, A* dots) {
  const int64_t channels = kFull ? kRoIChannels : t.channels;
  for (int64_t p = 0; p < t.positions; ++p) {
    A* column = t.columns + p * t.points * t.column_stride;
    for (int64_t k = 0; k < t.points; ++k, column += t.column_stride) {
      const DeformSample<A> s = load_sample(t, k * t.stride + p);
      Vector<A> dot[4] = {};
      for (int64_t c = 0; c < channels; c += kLanes<A>) {
        const int64_t n = channels - c;
        const Vector<A> column_values = load(column + c);
        const Vector<A> grad = select_first<kFull, A>(n, column_values, Vector<A>{});
        Vector<A> value[4];
        for (int i = 0; i < 4; ++i) {
          value[i] = load(t.map + s.corner[i] + c);
          if (!kScatter) continue;
          value[i] = select_first<kFull, A>(n, value[i], Vector<A>{});
          dot[i] = fused(grad, value[i], dot[i]);
          A* to = grad_map + s.corner[i] + c;
          const Vector<A> previous = load(to);
          store(to, select_first<kFull, A>(n, fused(s.weight[i], grad, previous), previous));
        }
        store(column + c, select_first<kFull, A>(n, blend(s, value), column_values));
      }
      if (!kScatter) continue;
      A sum[4];
      sum_lanes_of_four<A>(dot, sum);
      for (int i = 0; i < 4; ++i) dots[(i * t.points + k) * t.stride + p] += sum[i];
    }
  }
}

// Writes the samples to the columns.
template <typename A>
void deform_gather(const DeformBlock<A>& t) {
  if (t.channels == kRoIChannels) {
    process_samples<false, true, A>(t, nullptr, nullptr);
  } else {
    process_samples<false, false, A>(t, nullptr, nullptr);
  }
}

// Adds the gradient in the columns to `grad_map`, and its products with the values at the corners
// to `dots`, [4, points, stride]. Then overwrites the columns with the samples.
template <typename A>
void deform_scatter(const DeformBlock<A>& t, A* grad_map, A* dots) {
  if (t.channels == kRoIChannels) {
    process_samples<true, true>(t, grad_map, dots);
  } else {
    process_samples<true, false>(t, grad_map, dots);
  }
}

// Computes the gradients of a point's position and mask from its dots, 4 rows `stride` apart.
template <typename A>
void deform_differentiate(const DeformPoint<A>& t, const A* dots, int64_t stride, A* grad_y,
                          A* grad_x, A* grad_mask) {
  for (int64_t i = 0; i < t.positions; i += kLanes<A>) {
    const int64_t n = t.positions - i;
    const deform::Corners<Vector<A>> dot{{load_first(dots + i, n), load_first(dots + stride + i, n),
                                          load_first(dots + 2 * stride + i, n),
                                          load_first(dots + 3 * stride + i, n)}};
    const auto grad = deform::gradient<A>(sample_at(t, i), mask_at(t, i), dot);
    store_first(grad_y + i, grad.y, n);
    store_first(grad_x + i, grad.x, n);
    store_first(grad_mask + i, grad.mask, n);
  }
}
