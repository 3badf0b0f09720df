// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

typedef float FloatsOfDoubles __attribute__((vector_size(DETOPS_VECTOR_BYTES / 2)));

// Loads n consecutive costs, or as many as a vector of doubles holds. Other lanes are 0.
template <typename T>
DETOPS_INLINE Vector<double> load_costs(const T* p, int64_t n) {
  FloatsOfDoubles v{};
  if (std::is_same_v<T, float> && n >= kLanes<double>) {
    __builtin_memcpy(&v, p, sizeof v);
  } else {
    for (int64_t i = 0; i < kLanes<double>; ++i) {
      if (i < n) v[i] = math::to_float(p[i]);
    }
  }
  return __builtin_convertvector(v, Vector<double>);
}
DETOPS_INLINE Vector<double> load_costs(const double* p, int64_t n) { return load_first(p, n); }

// Reads the costs of an image into rows of objects or of queries, whichever are fewer. Returns
// false if a cost is invalid; see math::assignment::is_cost.
template <typename T>
DETOPS_INLINE bool read_costs(const AssignmentInput<T>& in, bool by_object, double* costs,
                              int64_t stride) {
  constexpr int64_t kWidth = kLanes<double>;
  Vector<double> invalid{};  // number of invalid costs in each lane
  for (int64_t query = 0; query < in.queries; query += kWidth) {
    const int64_t rows = in.queries - query < kWidth ? in.queries - query : kWidth;
    for (int64_t object = 0; object < in.objects; object += kWidth) {
      const int64_t columns = in.objects - object < kWidth ? in.objects - object : kWidth;
      Vector<double> tile[kWidth];
      DETOPS_UNROLL for (int64_t i = 0; i < kWidth; ++i) {
        const T* from = in.cost + (query + (i < rows ? i : 0)) * in.stride + object;
        tile[i] = load_costs(from, columns);
        const Vector<double> magnitude = max(tile[i], -tile[i]);
        invalid += magnitude <= math::assignment::kMaxCost ? Vector<double>{} : splat(1.0);
      }
      if (by_object) transpose<double>(tile);
      const int64_t filled = by_object ? columns : rows;
      double* to = costs + (by_object ? object * stride + query : query * stride + object);
      DETOPS_UNROLL for (int64_t i = 0; i < kWidth; ++i) {
        if (i < filled) store(to + i * stride, tile[i]);
      }
    }
  }
  for (int64_t i = 0; i < kWidth; ++i) {
    if (invalid[i] != 0) return false;
  }
  return true;
}

DETOPS_INLINE double least_lane(Vector<double> v) {
  double least = v[0];
  for (int64_t i = 1; i < kLanes<double>; ++i) least = math::min(least, v[i]);
  return least;
}

// Returns the first column whose sum is `least`, and prefers columns without an owner.
template <typename Sum>
DETOPS_INLINE int find_column(double least, const int* owner, int64_t stride, Sum&& sum) {
  constexpr uint32_t kAll = (1u << kLanes<double>)-1;
  int first = -1;
  for (int64_t j = 0; j < stride; j += kLanes<double>) {
    uint32_t equal = ~greater_bits(sum(j), splat(least)) & kAll;
    for (; equal != 0; equal &= equal - 1) {
      const int column = static_cast<int>(j) + __builtin_ctz(equal);
      if (owner[column] < 0) return column;
      if (first < 0) first = column;
    }
  }
  return first;
}

DETOPS_INLINE math::assignment::Nearest find_nearest(Vector<double> least,
                                                     const AssignmentScratch& at, int64_t stride) {
  const double distance = least_lane(least);
  const auto sum = [&](int64_t j) __attribute__((always_inline)) { return load(at.distance + j); };
  return {distance, find_column(distance, at.owner, stride, sum)};
}

// Implements the Columns of math::assignment::solve.
struct AssignmentColumns {
  static constexpr int64_t kWidth = kLanes<double>;
  AssignmentScratch at;
  int64_t stride;  // between rows, in whole vectors
  int n_closed = 0;

  double cost(int row, int column) const { return at.costs[row * stride + column]; }
  double price(int column) const { return at.price[column]; }
  int owner(int column) const { return at.owner[column]; }
  int column(int row) const { return at.column[row]; }

  math::assignment::Bid bid(int row) const {
    const double* costs = at.costs + row * stride;
    const auto sum = [&](int64_t j) __attribute__((always_inline)) {
      return load(costs + j) + load(at.price + j);
    };
    Vector<double> least = splat(double(__builtin_inf())), second = least;
    for (int64_t j = 0; j < stride; j += kWidth) {
      const Vector<double> x = sum(j);
      second = min(second, max(least, x));
      least = min(least, x);
    }
    math::assignment::Bid bid{least_lane(least), double(__builtin_inf()), 0};
    bool found = false;  // the first lane with the least sum contributes its second one
    for (int64_t i = 0; i < kWidth; ++i) {
      const bool is_source = !found && least[i] == bid.least;
      found = found || is_source;
      bid.second = math::min(bid.second, is_source ? second[i] : least[i]);
    }
    bid.column = find_column(bid.least, at.owner, stride, sum);
    return bid;
  }

  void assign(int column, int row, double price) {
    if (at.owner[column] >= 0) at.column[at.owner[column]] = -1;
    at.owner[column] = row;
    at.column[row] = column;
    at.price[column] = price;
  }

  template <bool kStart>
  math::assignment::Nearest relax_row(int row, double offset) {
    const double* costs = at.costs + row * stride;
    Vector<double> least = splat(double(__builtin_inf()));
    for (int64_t j = 0; j < stride; j += kWidth) {
      Vector<double> x = load(costs + j) + load(at.price + j);
      Vector<int64_t> from = Vector<int64_t>{} + row;
      if constexpr (!kStart) {
        const Vector<double> previous = load(at.distance + j);
        x -= offset;
        from = x < previous ? from : load(at.from + j);
        x = min(previous, x);
      }
      store(at.from + j, from);
      store(at.distance + j, x);
      least = min(least, x);
    }
    return find_nearest(least, at, stride);
  }

  math::assignment::Nearest start_paths(int row) {
    n_closed = 0;
    return relax_row<true>(row, 0);
  }

  // An infinite price keeps paths off the column.
  void close(const math::assignment::Nearest& nearest) {
    at.closed[n_closed++] = {nearest.distance, at.price[nearest.column], nearest.column};
    at.price[nearest.column] = at.distance[nearest.column] = __builtin_inf();
  }

  math::assignment::Nearest relax(int row, double offset) { return relax_row<false>(row, offset); }

  void update_prices(double distance) {
    for (int i = 0; i < n_closed; ++i) {
      const ClosedColumn& closed = at.closed[i];
      at.price[closed.column] = closed.price + (distance - closed.distance);
    }
  }

  void augment(int column, int row) {
    for (int from = -1; from != row;) {
      from = static_cast<int>(at.from[column]);
      const int next = at.column[from];
      at.owner[column] = from;
      at.column[from] = column;
      column = next;
    }
  }
};

// Sets the first prices if there are as many rows as columns. They may then differ, because every
// column will have an owner. price[j] = -min_i (cost[i, j] - min_k cost[i, k]).
DETOPS_INLINE void first_prices(const AssignmentScratch& at, int64_t stride, int rows) {
  constexpr int64_t kWidth = kLanes<double>;
  const Vector<double> infinite = splat(double(__builtin_inf()));
  for (int64_t j = 0; j < stride; j += kWidth) store(at.distance + j, infinite);
  for (int row = 0; row < rows; ++row) {
    const double* costs = at.costs + row * stride;
    Vector<double> least = infinite;
    for (int64_t j = 0; j < stride; j += kWidth) {
      least = min(least, load(costs + j) + load(at.price + j));
    }
    const Vector<double> row_min = splat(least_lane(least));
    for (int64_t j = 0; j < stride; j += kWidth) {
      store(at.distance + j, min(load(at.distance + j), load(costs + j) - row_min));
    }
  }
  for (int row = 0; row < rows; ++row) at.price[row] = -at.distance[row];
}

// Writes the object of each query of an image, or -1.
template <typename T>
void assign_image(const AssignmentInput<T>& in, const AssignmentScratch& scratch,
                  int64_t* objects) {
  for (int64_t query = 0; query < in.queries; ++query) objects[query] = -1;
  if (in.objects == 0) return;
  const bool by_object = in.objects < in.queries;
  const int rows = static_cast<int>(by_object ? in.objects : in.queries);
  const int64_t columns = by_object ? in.queries : in.objects;
  constexpr int64_t kWidth = kLanes<double>;
  AssignmentColumns at{scratch, (columns + kWidth - 1) / kWidth * kWidth};
  const bool all_valid = read_costs(in, by_object, scratch.costs, at.stride);
  double forbidden = __builtin_inf();
  if (!all_valid) {
    double least = __builtin_inf(), most = -least;
    for (int row = 0; row < rows; ++row) {
      for (int64_t j = 0; j < columns; ++j) {
        const double cost = scratch.costs[row * at.stride + j];
        if (!math::assignment::is_cost(cost)) continue;
        least = math::min(least, cost), most = math::max(most, cost);
      }
    }
    if (least > most) return;
    forbidden = math::assignment::forbidden_cost(least, most, rows);
    for (int row = 0; row < rows; ++row) {
      for (int64_t j = 0; j < at.stride; ++j) {  // including the padding, which must be finite
        double& cost = scratch.costs[row * at.stride + j];
        if (!math::assignment::is_cost(cost)) cost = forbidden;
      }
    }
  }
  for (int64_t j = 0; j < at.stride; ++j) {
    scratch.price[j] = j < columns ? 0.0 : double(__builtin_inf());
    scratch.owner[j] = -1;
  }
  for (int row = 0; row < rows; ++row) scratch.column[row] = -1;
  if (rows == columns) first_prices(scratch, at.stride, rows);
  math::assignment::solve(at, rows);
  for (int row = 0; row < rows; ++row) {
    const int column = scratch.column[row];
    if (at.cost(row, column) >= forbidden) continue;
    objects[by_object ? column : row] = by_object ? row : column;
  }
}
