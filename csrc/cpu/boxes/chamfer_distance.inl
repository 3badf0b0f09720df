// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

// Finds the nearest of m other points for each point (x[i], y[i]), one point per lane.
template <typename T>
void nearest_points(const T* x, const T* y, int64_t n, const T* other_x, const T* other_y,
                    int64_t m, T* distance, int64_t* index) {
  using Index = lane_index_t<T>;
  constexpr int64_t kWidth = kLanes<T>;
  for (int64_t i = 0; i < n; i += kWidth) {
    const Vector<T> own_x = load_first(x + i, n - i), own_y = load_first(y + i, n - i);
    Vector<T> least = splat(std::numeric_limits<T>::infinity());
    Vector<Index> nearest = Vector<Index>{} - 1, current{};
    for (int64_t j = 0; j < m; ++j) {
      const Vector<T> dx = splat(other_x[j]) - own_x, dy = splat(other_y[j]) - own_y;
      const Vector<T> d = dx * dx + dy * dy;
      nearest = d < least ? current : nearest;
      least = d < least ? d : least;
      current += 1;
    }
    store_first(distance + i, least, n - i);
    for (int64_t k = 0; k < kWidth && i + k < n; ++k) index[i + k] = nearest[k];
  }
}
