// SPDX-License-Identifier: MIT
#include "../../math/linear_assignment.h"

#include "../common/block.cuh"

namespace detops::cuda {
namespace {

// State of the columns and rows of one image.
struct AssignmentMemory {
  double *price, *distance;          // [columns]
  double *open_price, *at_distance;  // [columns], values when a column was closed
  int *owner, *from;                 // [columns], owning row, previous row on the path
  int* column;                       // [rows]

  DETOPS_HD static int64_t bytes(int64_t rows, int64_t columns) {
    return columns * (4 * sizeof(double) + 2 * sizeof(int)) + (rows + 1) / 2 * 2 * sizeof(int);
  }

  __device__ static AssignmentMemory of(double* begin, int64_t columns) {
    int* owner = reinterpret_cast<int*>(begin + 4 * columns);
    return {begin, begin + columns, begin + 2 * columns, begin + 3 * columns,
            owner, owner + columns, owner + 2 * columns};
  }
};

// The two smallest sums seen so far, and the column of the smallest, with the bit kHasOwner set if
// it has an owner. Of equal sums, columns without an owner come first, then the lowest index.
struct Seen {
  double least, second;
  int place;

  __device__ bool before(const Seen& o) const {
    return least < o.least ||
           (least == o.least && static_cast<unsigned>(place) < static_cast<unsigned>(o.place));
  }

  __device__ void add(const Seen& o) {
    if (o.before(*this)) {
      second = math::min(least, o.second);
      least = o.least, place = o.place;
    } else {
      second = math::min(second, o.least);
    }
  }
};

constexpr unsigned kHasOwner = 1u << 31;
constexpr int kWarps = kThreads / kWarp;

// `Columns` of math::assignment::solve. All threads of the block take the same branches. Thread t
// owns every 256th column from t on.
struct BlockColumns {
  AssignmentMemory at;
  const double* costs;
  int columns;
  Seen (*of_warps)[kWarps];  // two in shared memory, used in turn to save a barrier
  int turn = 0;

  __device__ double cost(int row, int column) const {
    return costs[int64_t(row) * columns + column];
  }
  __device__ double price(int column) const { return at.price[column]; }
  __device__ int owner(int column) const { return at.owner[column]; }
  __device__ int column(int row) const { return at.column[row]; }

  // Finds the two smallest values of sum(column) over all columns. All threads get the result.
  template <typename Sum>
  __device__ Seen look(const Sum& sum) {
    Seen seen{INFINITY, INFINITY, -1};
    for (int j = static_cast<int>(threadIdx.x); j < columns; j += kThreads) {
      const unsigned place = static_cast<unsigned>(j) | (at.owner[j] >= 0 ? kHasOwner : 0);
      seen.add({sum(j), INFINITY, static_cast<int>(place)});
    }
    seen = join_block(seen, of_warps[turn]);
    turn = 1 - turn;
    seen.place = static_cast<int>(static_cast<unsigned>(seen.place) & ~kHasOwner);
    return seen;
  }

  __device__ math::assignment::Bid bid(int row) {
    const Seen all = look([&](int j) { return cost(row, j) + at.price[j]; });
    return {all.least, all.second, all.place};
  }

  // Initialises the prices. They may differ only because all columns will have owners. The price of
  // a column is minus the least by which a cost in it exceeds the minimum of its row.
  __device__ void first_prices(int rows) {
    for (int row = static_cast<int>(threadIdx.x); row < rows; row += kThreads) {
      double least = cost(row, 0);
      for (int j = 1; j < columns; ++j) least = math::min(least, cost(row, j));
      at.distance[row] = least;
    }
    __syncthreads();
    for (int j = static_cast<int>(threadIdx.x); j < columns; j += kThreads) {
      double least = INFINITY;
      for (int row = 0; row < rows; ++row) {
        least = math::min(least, cost(row, j) - at.distance[row]);
      }
      at.price[j] = -least;
    }
  }

  // One thread writes, after all threads have read the previous values.
  __device__ void assign(int column, int row, double price) {
    __syncthreads();
    if (threadIdx.x == 0) {
      if (at.owner[column] >= 0) at.column[at.owner[column]] = -1;
      at.owner[column] = row;
      at.column[row] = column;
      at.price[column] = price;
    }
    __syncthreads();
  }

  __device__ math::assignment::Nearest start_paths(int row) {
    const Seen all = look([&](int j) {
      at.from[j] = row;
      return at.distance[j] = cost(row, j) + at.price[j];
    });
    return {all.least, all.place};
  }

  // An infinite price keeps other paths away from the column.
  __device__ void close(const math::assignment::Nearest& nearest) {
    __syncthreads();
    const int j = nearest.column;
    if (j % kThreads != static_cast<int>(threadIdx.x)) return;
    at.open_price[j] = at.price[j];
    at.at_distance[j] = nearest.distance;
    at.price[j] = at.distance[j] = INFINITY;
  }

  __device__ math::assignment::Nearest relax(int row, double offset) {
    const Seen all = look([&](int j) {
      const double distance = cost(row, j) + at.price[j] - offset;
      if (distance < at.distance[j]) {
        at.distance[j] = distance;
        at.from[j] = row;
      }
      return at.distance[j];
    });
    return {all.least, all.place};
  }

  __device__ void update_prices(double distance) {
    for (int j = static_cast<int>(threadIdx.x); j < columns; j += kThreads) {
      if (at.price[j] == INFINITY) {
        at.price[j] = at.open_price[j] + (distance - at.at_distance[j]);
      }
    }
  }

  __device__ void augment(int column, int row) {
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int from = -1; from != row;) {
        from = at.from[column];
        const int next = at.column[from];
        at.owner[column] = from;
        at.column[from] = column;
        column = next;
      }
    }
    __syncthreads();
  }
};

// One block per image: each step of the search is one pass over the columns and depends on the
// previous one. `n_objects` may be null. `all_memory` is null if the state fits in shared memory.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    assignment_kernel(const T* all_given, const int64_t* n_objects, int64_t images, int64_t queries,
                      int64_t most_objects, double* all_costs, double* all_memory, int64_t words,
                      int64_t* objects) {
  DETOPS_DYNAMIC_SHARED(dynamic);
  __shared__ Seen of_warps[2][kWarps];
  const int self = static_cast<int>(threadIdx.x);
  for (int64_t image = blockIdx.x; image < images; image += gridDim.x) {
    const T* given = all_given + image * queries * most_objects;
    // The rows of `costs` are queries or objects, whichever are fewer.
    double* costs = all_costs + image * queries * most_objects;
    int64_t* out = objects + image * queries;
    int64_t n = n_objects == nullptr ? most_objects : n_objects[image];
    n = math::max<int64_t>(0, math::min(n, most_objects));
    const bool by_object = n < queries;
    const int rows = static_cast<int>(by_object ? n : queries);
    const int columns = static_cast<int>(by_object ? queries : n);
    double least = INFINITY, most = -INFINITY;
    for (int64_t i = self; i < queries * n; i += kThreads) {
      const int64_t query = i / n, object = i - query * n;
      const double cost = static_cast<double>(given[query * most_objects + object]);
      costs[by_object ? object * queries + query : i] = cost;
      if (!math::assignment::is_cost(cost)) continue;
      least = math::min(least, cost), most = math::max(most, cost);
    }
    for (int64_t query = self; query < queries; query += kThreads) out[query] = -1;
    least = join_block({least, INFINITY, 0}, of_warps[0]).least;
    most = -join_block({-most, INFINITY, 0}, of_warps[1]).least;
    if (least > most) continue;
    const double forbidden = math::assignment::forbidden_cost(least, most, rows);
    double* memory =
        all_memory == nullptr ? reinterpret_cast<double*>(dynamic) : all_memory + image * words;
    BlockColumns block{AssignmentMemory::of(memory, columns), costs, columns, of_warps};
    for (int64_t i = self; i < queries * n; i += kThreads) {
      if (!math::assignment::is_cost(costs[i])) costs[i] = forbidden;
    }
    for (int j = self; j < columns; j += kThreads) {
      block.at.price[j] = 0;
      block.at.owner[j] = -1;
    }
    for (int row = self; row < rows; row += kThreads) block.at.column[row] = -1;
    __syncthreads();
    if (rows == columns) {
      block.first_prices(rows);
      __syncthreads();
    }
    math::assignment::solve(block, rows);
    for (int row = self; row < rows; row += kThreads) {
      const int column = block.column(row);
      if (block.cost(row, column) >= forbidden) continue;
      out[by_object ? column : row] = by_object ? row : column;
    }
    __syncthreads();
  }
}

}  // namespace

void linear_assignment(const Tensor& cost, const std::optional<Tensor>& num_objects,
                       Tensor& objects) {
  const int64_t images = cost.size(0), queries = cost.size(1), most = cost.size(2);
  narrow(queries);
  if (narrow(most) == 0) {
    objects.fill_(-1);
    return;
  }
  const Tensor given = cost.contiguous();
  const Tensor counts = num_objects ? num_objects->to(kLong).contiguous() : Tensor();
  const auto doubles = cost.options().dtype(kDouble);
  const Tensor costs = empty({images, queries * most}, doubles);
  const int64_t bytes = AssignmentMemory::bytes(std::min(queries, most), std::max(queries, most));
  const int64_t words = bytes / int64_t(sizeof(double));
  constexpr int64_t kShared = 40 << 10;
  const bool shared = bytes <= kShared;
  const Tensor memory = shared ? Tensor() : empty({images, words}, doubles);
  DETOPS_FLOAT_SWITCH(given.scalar_type(), [&] {
    launch(assignment_kernel<scalar_t>,
           {blocks_for(images, 1), kThreads, shared ? size_t(bytes) : 0}, given, counts, images,
           queries, most, costs, memory, words, objects);
  });
}

}  // namespace detops::cuda
