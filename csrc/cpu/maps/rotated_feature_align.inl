// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. For few channels: sampling points are located
// for a block of pixels, a vector at a time, and then sampled channel by channel. Maps have at
// least two rows and two columns.

#include "../roi/bin_pool.inl"
//
#include "../common/neighbours.inl"

// The samples of a block of pixels: sample p of pixel i is at p * kPixels + i.
template <typename A>
using PixelSamples = Neighbours<A, math::kMaxBoxPoints * kPixels>;

template <typename From, typename To, typename A>
void locate_samples(const RefinedPlanes<From, To>& t, int64_t first, int64_t count,
                    PixelSamples<A>& samples) {
  A ys[math::kMaxBoxPoints * kPixels], xs[math::kMaxBoxPoints * kPixels];
  for (int64_t i = 0; i < count; ++i) {
    int64_t p = i;
    math::visit_box_points(t.boxes + (first + i) * 5, t.scale, t.points, [&](A y, A x) {
      ys[p] = y;
      xs[p] = x;
      p += kPixels;
    });
  }
  for (int64_t p = 0; p < t.points * kPixels; p += kPixels) {
    for (int64_t k = p; k < p + count; k += kLanes<A>) {
      const int64_t n = p + count - k;
      find_neighbours<A>(load_first(ys + k, n), load_first(xs + k, n), t.height, t.width, samples,
                         k);
    }
  }
}

// Calls visit(position, weight) for each element that a pixel's samples read. Skips weights of
// zero, because 0 * NaN is NaN.
template <typename From, typename To, typename Visit>
void visit_exactly(const RefinedPlanes<From, To>& t, int64_t pixel, const Visit& visit) {
  using A = typename RefinedPlanes<From, To>::A;
  math::visit_box_points(t.boxes + pixel * 5, t.scale, t.points, [&](A y, A x) {
    math::visit_corners(y, x, t.height, t.width, [&](int64_t row, int64_t col, A weight) {
      visit(row * t.width + col, weight);
    });
  });
}

// Calls run(samples, first, channel, pixels) for each channel of each block in [begin, end).
template <typename From, typename To, typename Run>
DETOPS_INLINE void each_block(const RefinedPlanes<From, To>& t, int64_t begin, int64_t end,
                              const Run& run) {
  PixelSamples<typename RefinedPlanes<From, To>::A> samples;
  for (; begin < end; begin += kPixels) {
    const int64_t count = end - begin < kPixels ? end - begin : kPixels;
    locate_samples(t, begin, count, samples);
    for (int64_t c = 0; c < t.channels; ++c) run(samples, begin, c, count);
  }
}

template <typename T, typename A = accumulate_t<T>>
void add_samples(const RefinedPlanes<T, T>& planes, int64_t begin, int64_t end) {
  const RefinedPlanes<T, T> t = planes;  // see spread_planes in ps_roi_align.inl
  const int64_t pixel_stride = t.pixel_stride, row_stride = t.width * pixel_stride;
  each_block(t, begin, end, [&](const PixelSamples<A>& s, int64_t first, int64_t c, int64_t count) {
    const T* map = t.from + c * t.channel_stride;
    for (int64_t i = 0; i < count; ++i) {
      const A center = math::to_float(map[(first + i) * pixel_stride]);
      A sum = center;
      for (int64_t k = i; k < t.points * kPixels; k += kPixels) {
        const T* p = map + s.position[k] * pixel_stride;
        sum += (s.weight[0][k] * A(math::to_float(p[0])) +
                s.weight[1][k] * A(math::to_float(p[pixel_stride]))) +
               (s.weight[2][k] * A(math::to_float(p[row_stride])) +
                s.weight[3][k] * A(math::to_float(p[row_stride + pixel_stride])));
      }
      if (!(sum - sum == 0)) {
        sum = center;
        visit_exactly(t, first + i, [&](int64_t at, A weight) {
          sum += weight * A(math::to_float(map[at * pixel_stride]));
        });
      }
      math::from_float(sum, t.to[c * t.channel_stride + (first + i) * pixel_stride]);
    }
  });
}

template <typename T, typename A = accumulate_t<T>>
void scatter_samples(const RefinedPlanes<T, A>& planes, int64_t begin, int64_t end) {
  const RefinedPlanes<T, A> t = planes;  // see spread_planes in ps_roi_align.inl
  const int64_t pixel_stride = t.pixel_stride, row_stride = t.width * pixel_stride;
  for (int64_t c = 0; c < t.channels; ++c) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = c * t.channel_stride + i * pixel_stride;
      t.to[at] = A(math::to_float(t.from[at]));
    }
  }
  each_block(t, begin, end, [&](const PixelSamples<A>& s, int64_t first, int64_t c, int64_t count) {
    A* map = t.to + c * t.channel_stride;
    for (int64_t i = 0; i < count; ++i) {
      const A grad = math::to_float(t.from[c * t.channel_stride + (first + i) * pixel_stride]);
      if (!(grad - grad == 0)) {
        visit_exactly(t, first + i,
                      [&](int64_t at, A weight) { map[at * pixel_stride] += weight * grad; });
        continue;
      }
      for (int64_t k = i; k < t.points * kPixels; k += kPixels) {
        A* to = map + s.position[k] * pixel_stride;
        to[0] += s.weight[0][k] * grad;
        to[pixel_stride] += s.weight[1][k] * grad;
        to[row_stride] += s.weight[2][k] * grad;
        to[row_stride + pixel_stride] += s.weight[3][k] * grad;
      }
    }
  });
}
