// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

// Returns the running maximum after x; see CornerLines.
template <typename A>
DETOPS_INLINE Vector<A> running_max(Vector<A> best, Vector<A> x) {
  return ((x >= best) | (x != x)) ? x : best;
}

// Returns the gradient of x. `sum` is the gradient, not yet assigned, of all results from x to the
// end. It goes to x if x is the running maximum `pooled`.
template <typename A>
DETOPS_INLINE Vector<A> take_gradient(Vector<A> x, Vector<A> pooled, Vector<A>& sum) {
  const auto is_maximum = (x == pooled) | (x != x);
  const Vector<A> assigned = is_maximum ? sum : Vector<A>{};
  sum = is_maximum ? Vector<A>{} : sum;
  return assigned;
}

// Pools `count` adjacent lines, row by row.
template <typename T, typename A = accumulate_t<T>>
void pool_adjacent(const T* input, int64_t length, int64_t step, int64_t count, T* output) {
  for (int64_t i = 0; i < length; ++i, input += step, output += step) {
    for (int64_t c = 0; c < count; c += kLanes<A>) {
      const Vector<A> x = load_first(input + c, count - c);
      const Vector<A> best = i == 0 ? x : load_first(output - step + c, count - c);
      store_first(output + c, running_max<A>(best, x), count - c);
    }
  }
}

// Backward pass of pool_adjacent, from the last row to the first. `sums` has room for all lines,
// rounded up to whole vectors.
template <typename T, typename A = accumulate_t<T>>
void pool_adjacent_backward(const T* grad, const T* input, const T* pooled, int64_t length,
                            int64_t step, int64_t count, A* sums, T* to_input) {
  for (int64_t c = 0; c < count; c += kLanes<A>) store(sums + c, Vector<A>{});
  for (int64_t i = length - 1; i >= 0; --i) {
    for (int64_t c = 0; c < count; c += kLanes<A>) {
      const int64_t at = i * step + c, n = count - c;
      Vector<A> sum = load(sums + c) + load_first(grad + at, n);
      const Vector<A> assigned =
          take_gradient<A>(load_first(input + at, n), load_first(pooled + at, n), sum);
      store_first(to_input + at, assigned, n);
      store(sums + c, sum);
    }
  }
}

// Pools `rows` lines, at most one per lane, whose elements are adjacent.
template <typename T, typename A = accumulate_t<T>>
void pool_contiguous(const T* input, int64_t length, int64_t rows, bool back, T* output) {
  constexpr int64_t kWidth = kLanes<A>;
  const int64_t tiles = (length + kWidth - 1) / kWidth;
  Vector<A> best = splat<A>(-A(__builtin_inf()));
  for (int64_t s = 0; s < tiles; ++s) {
    const int64_t at = (back ? tiles - 1 - s : s) * kWidth;
    const int64_t n = length - at < kWidth ? length - at : kWidth;
    Vector<A> v[kWidth];
    load_transposed(input + at, length, rows, n, v);
    for (int64_t i = 0; i < n; ++i) {
      Vector<A>& x = v[back ? n - 1 - i : i];
      x = best = running_max<A>(best, x);
    }
    store_transposed(output + at, length, rows, n, v);
  }
}

template <typename T, typename A = accumulate_t<T>>
void pool_contiguous_backward(const T* grad, const T* input, const T* pooled, int64_t length,
                              int64_t rows, bool back, T* to_input) {
  constexpr int64_t kWidth = kLanes<A>;
  const int64_t tiles = (length + kWidth - 1) / kWidth;
  Vector<A> sum{};
  for (int64_t s = 0; s < tiles; ++s) {
    const int64_t at = (back ? s : tiles - 1 - s) * kWidth;
    const int64_t n = length - at < kWidth ? length - at : kWidth;
    Vector<A> g[kWidth], x[kWidth], y[kWidth];
    load_transposed(grad + at, length, rows, n, g);
    load_transposed(input + at, length, rows, n, x);
    load_transposed(pooled + at, length, rows, n, y);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t k = back ? i : n - 1 - i;
      sum += g[k];
      g[k] = take_gradient<A>(x[k], y[k], sum);
    }
    store_transposed(to_input + at, length, rows, n, g);
  }
}
