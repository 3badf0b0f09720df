// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Points are located once for all channels of an
// image, a vector at a time. Then planes are sampled one by one: a single plane fits in a cache.

#include "../../math/deform.inl"

// Loads the left and right pixels of the pairs that begin at at[0], at[1], ...
template <int... I>
DETOPS_INLINE void load_pairs(const double* plane, const int64_t* at, Vector<double>& left,
                              Vector<double>& right, Lanes<I...>) {
  left = Vector<double>{plane[at[I]]...};
  right = Vector<double>{plane[at[I] + 1]...};
}

template <typename Pair, typename T>
DETOPS_INLINE Pair pair_at(const T* p) {
  Pair bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return bits;
}

template <int... I>
DETOPS_INLINE Vector<uint64_t> wide_pairs(const float* plane, const int32_t* at, Lanes<I...>) {
  return Vector<uint64_t>{pair_at<uint64_t>(plane + at[I])...};
}

template <int... I>
DETOPS_INLINE void load_pairs(const float* plane, const int32_t* at, Vector<float>& left,
                              Vector<float>& right, Lanes<I...> lanes) {
  const AllLanes<uint64_t> half{};
  left = (Vector<float>)wide_pairs(plane, at, half);
  right = (Vector<float>)wide_pairs(plane, at + kLanes<uint64_t>, half);
  unzip<float>(left, right, lanes);
}

DETOPS_INLINE Vector<float> widened(Vector<uint32_t> bits, const BFloat16*) {
  return (Vector<float>)(bits << 16);
}

DETOPS_INLINE Vector<float> widened(Vector<uint32_t> bits, const Half*) {
  const Bits16 narrow = __builtin_convertvector(bits, Bits16);
  Half halves[kLanes<float>];
  __builtin_memcpy(halves, &narrow, sizeof halves);
  return load(halves);
}

template <typename T, int... I>
DETOPS_INLINE void load_pairs(const T* plane, const int32_t* at, Vector<float>& left,
                              Vector<float>& right, Lanes<I...>) {
  const Vector<uint32_t> pairs{pair_at<uint32_t>(plane + at[I])...};
  left = widened(pairs & 0xffffu, plane);
  right = widened(pairs >> 16, plane);
}

// Loads the four pixels of a vector of points on the map, in the order of attention::Corners.
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE attention::Corners<Vector<A>> load_corners(const T* plane, int64_t width,
                                                         const lane_index_t<A>* at) {
  const AllLanes<A> all{};
  attention::Corners<Vector<A>> c;
  load_pairs(plane, at, c.at[0], c.at[1], all);
  load_pairs(plane + width, at, c.at[2], c.at[3], all);
  return c;
}

template <typename A>
void locate_points(const A* points, int64_t height, int64_t width, LocatedPoints<A>& to) {
  using I = Vector<lane_index_t<A>>;
  constexpr int64_t kWidth = kLanes<A>;
  const I columns = I{} + lane_index_t<A>(width), rows = I{} + lane_index_t<A>(height);
  const int64_t count = to.count;
  to.edges = 0;
  for (int64_t i = 0; i < count; i += kWidth) {
    const int64_t n = count - i;
    Vector<A> x, y;
    load_unzipped(points + 2 * i, n, x, y);
    const auto place = attention::locate<A>(x, y, splat(A(width)), splat(A(height)));
    const I column = __builtin_convertvector(place.x, I), row = __builtin_convertvector(place.y, I);
    const I within = (column >= 0) & (column < columns - 1) & (row >= 0) & (row < rows - 1);
    store(to.at + i, within ? row * columns + column : I{});
    const auto weights = attention::corner_weights<A>(place);
    for (int k = 0; k < 4; ++k) store(to.weight[k] + i, weights.at[k]);
    if (to.right != nullptr) {
      store(to.right + i, place.right);
      store(to.lower + i, place.lower);
    }
    uint32_t bits = greater_bits(within ? Vector<A>{} : splat(A(1)), Vector<A>{});
    if (n < kWidth) bits &= (1u << n) - 1;
    if (bits == 0) continue;
    const auto pixels = attention::positions(column, row, columns, rows, I{});
    for (; bits != 0; bits &= bits - 1) {
      const int j = __builtin_ctz(bits);
      EdgePoint<A>& edge = to.edge[to.edges++];
      edge.point = i + j;
      int64_t any = -1;
      for (int k = 0; k < 4; ++k) any = pixels.at[k][j] >= 0 ? pixels.at[k][j] : any;
      for (int k = 0; k < 4; ++k) {
        edge.on_map[k] = pixels.at[k][j] >= 0;
        edge.pixel[k] = edge.on_map[k] ? pixels.at[k][j] : any;
        edge.weight[k] = edge.on_map[k] ? weights.at[k][j] : A(0);
      }
      edge.right = place.right[j];
      edge.lower = place.lower[j];
      edge.x = edge.y = 0;
    }
  }
}

template <typename T, typename A = accumulate_t<T>>
void sample_plane(const T* plane, int64_t width, const LocatedPoints<A>& p, T* output) {
  for (int64_t i = 0; i < p.count && p.edges < p.count; i += kLanes<A>) {
    const auto c = load_corners(plane, width, p.at + i);
    const Vector<A> upper = fused(load(p.weight[1] + i), c.at[1], load(p.weight[0] + i) * c.at[0]);
    const Vector<A> lower = fused(load(p.weight[3] + i), c.at[3], load(p.weight[2] + i) * c.at[2]);
    store_first(output + i, upper + lower, p.count - i);
  }
  for (int64_t e = 0; e < p.edges; ++e) {
    const EdgePoint<A>& edge = p.edge[e];
    A sum = 0;
    if (edge.pixel[0] >= 0) {
      for (int k = 0; k < 4; ++k) sum += edge.weight[k] * math::to_float(plane[edge.pixel[k]]);
    }
    math::from_float(sum, output[edge.point]);
  }
}

template <typename A>
DETOPS_INLINE void add_pair(A* to, const A* pair) {
  typedef A Pair __attribute__((vector_size(2 * sizeof(A))));
  Pair sum, more;
  __builtin_memcpy(&sum, to, sizeof sum);
  __builtin_memcpy(&more, pair, sizeof more);
  sum += more;
  __builtin_memcpy(to, &sum, sizeof sum);
}

// Adds to the gradient of a plane, point by point.
template <typename T, typename A = accumulate_t<T>>
void scatter_plane(const T* grad, int64_t width, const LocatedPoints<A>& p, A* to_plane) {
  constexpr int64_t kWidth = kLanes<A>;
  const EdgePoint<A>*edge = p.edge, *const end = p.edge + p.edges;
  for (int64_t i = 0; i < p.count; i += kWidth) {
    const int64_t n = p.count - i < kWidth ? p.count - i : kWidth;
    const Vector<A> g = load_first(grad + i, n);
    A upper[2 * kWidth], lower[2 * kWidth];
    for (int k = 0; k < 4; k += 2) {
      Vector<A> left = g * load(p.weight[k] + i), right = g * load(p.weight[k + 1] + i);
      zip<A>(left, right, AllLanes<A>{});
      A* pairs = k == 0 ? upper : lower;
      store(pairs, left);
      store(pairs + kWidth, right);
    }
    for (int64_t j = 0; j < n; ++j) {
      if (edge != end && edge->point == i + j) {
        for (int k = 0; k < 4 && edge->pixel[0] >= 0; ++k) {
          to_plane[edge->pixel[k]] += edge->weight[k] * A(g[j]);
        }
        ++edge;
        continue;
      }
      A* to = to_plane + p.at[i + j];
      add_pair(to, upper + 2 * j);
      add_pair(to + width, lower + 2 * j);
    }
  }
}

// Adds a plane's part of the gradient of the points, in pixels. Edge points have their own sums.
// Their elements of to_x and to_y are arbitrary.
template <typename T, typename A = accumulate_t<T>>
void add_point_gradients(const T* plane, const T* grad, int64_t width, const LocatedPoints<A>& p,
                         A* to_x, A* to_y) {
  for (int64_t i = 0; i < p.count && p.edges < p.count; i += kLanes<A>) {
    const Vector<A> g = load_first(grad + i, p.count - i);
    const auto c = load_corners(plane, width, p.at + i);
    const Vector<A> right = load(p.right + i), lower = load(p.lower + i);
    const Vector<A> left = A(1) - right, upper = A(1) - lower;
    const Vector<A> x = fused(upper, c.at[1] - c.at[0], lower * (c.at[3] - c.at[2]));
    const Vector<A> y = fused(left, c.at[2] - c.at[0], right * (c.at[3] - c.at[1]));
    store(to_x + i, fused(g, x, load(to_x + i)));
    store(to_y + i, fused(g, y, load(to_y + i)));
  }
  for (int64_t e = 0; e < p.edges; ++e) {
    EdgePoint<A>& edge = p.edge[e];
    A at[4];
    for (int k = 0; k < 4; ++k) {
      at[k] = edge.on_map[k] ? A(math::to_float(plane[edge.pixel[k]])) : A(0);
    }
    const A g = math::to_float(grad[edge.point]), left = 1 - edge.right, upper = 1 - edge.lower;
    edge.x += g * (upper * (at[1] - at[0]) + edge.lower * (at[3] - at[2]));
    edge.y += g * (left * (at[2] - at[0]) + edge.right * (at[3] - at[1]));
  }
}
