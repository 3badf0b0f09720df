// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Samples of a map, a vector of them at a time.

template <typename A>
using Int32Lanes [[gnu::vector_size(4 * kLanes<A>)]] = int32_t;

// Where to find the first of the four neighbours of each sample, and what they count for.
template <typename A, int64_t kRoom>
struct Neighbours {
  int32_t position[kRoom];
  A weight[4][kRoom];
};

// One axis of a vector of samples that lie on the map: as math::bilinear_taps, but the last pixel
// is the second neighbour of the one before.
template <typename A>
DETOPS_INLINE Int32Lanes<A> low_neighbours(Vector<A> at, int64_t size, Vector<A>& fraction) {
  at = min(max(at, Vector<A>{}), splat(A(size - 1)));
  at = at == at ? at : Vector<A>{};
  const Int32Lanes<A> whole = __builtin_convertvector(at, Int32Lanes<A>);
  const Vector<A> low = min(__builtin_convertvector(whole, Vector<A>), splat(A(size - 2)));
  fraction = at - low;
  return __builtin_convertvector(low, Int32Lanes<A>);
}

// Of the samples (y, x), from the k-th on. Off the map they count for nothing.
template <typename A, int64_t kRoom>
DETOPS_INLINE void find_neighbours(Vector<A> y, Vector<A> x, int64_t height, int64_t width,
                                   Neighbours<A, kRoom>& samples, int64_t k) {
  const Vector<A> one = splat(A(1)), least = -one;
  const Vector<A> highest = splat(A(height)), widest = splat(A(width));
  const auto inside = (y >= least) & (y <= highest) & (x >= least) & (x <= widest);
  Vector<A> lower, right;
  const Int32Lanes<A> row = low_neighbours<A>(y, height, lower);
  const Int32Lanes<A> col = low_neighbours<A>(x, width, right);
  const Int32Lanes<A> position = row * static_cast<int32_t>(width) + col;
  __builtin_memcpy(samples.position + k, &position, sizeof position);
  const Vector<A> upper = inside ? one - lower : Vector<A>{}, left = one - right;
  lower = inside ? lower : Vector<A>{};
  store(samples.weight[0] + k, upper * left);
  store(samples.weight[1] + k, upper * right);
  store(samples.weight[2] + k, lower * left);
  store(samples.weight[3] + k, lower * right);
}
