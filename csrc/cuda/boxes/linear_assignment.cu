// SPDX-License-Identifier: MIT
#include "../../math/linear_assignment.h"

#include "../common/block.cuh"

namespace detops::cuda {
namespace {

// State of the columns and rows of one image.
struct AssignmentState {
  double *price, *distance;                    // [columns]
  double *price_at_close, *distance_at_close;  // [columns], values when a column was closed
  int *owner, *predecessor;                    // [columns], owning row, previous row on the path
  int* column;                                 // [rows]

  DETOPS_HD static int64_t bytes(int64_t rows, int64_t columns) {
    return columns * (4 * sizeof(double) + 2 * sizeof(int)) + (rows + 1) / 2 * 2 * sizeof(int);
  }

  __device__ static AssignmentState from_memory(double* begin, int64_t columns) {
    int* owner = reinterpret_cast<int*>(begin + 4 * columns);
    return {begin, begin + columns, begin + 2 * columns, begin + 3 * columns,
            owner, owner + columns, owner + 2 * columns};
  }
};

// The two smallest sums seen so far, and the column of the smallest, with the bit kHasOwner set if
// it has an owner. Of equal sums, columns without an owner come first, then the lowest index.
struct TwoSmallest {
  double least, second;
  int tagged_column;

  __device__ bool before(const TwoSmallest& o) const {
    return least < o.least || (least == o.least && static_cast<unsigned>(tagged_column) <
                                                       static_cast<unsigned>(o.tagged_column));
  }

  __device__ void add(const TwoSmallest& o) {
    if (o.before(*this)) {
      second = math::min(least, o.second);
      least = o.least, tagged_column = o.tagged_column;
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
  AssignmentState state;
  const double* costs;
  int columns;
  TwoSmallest (*warp_values)[kWarps];  // two in shared memory, used in turn to save a barrier
  int turn = 0;

  __device__ double cost(int row, int column) const {
    return costs[int64_t(row) * columns + column];
  }
  __device__ double price(int column) const { return state.price[column]; }
  __device__ int owner(int column) const { return state.owner[column]; }
  __device__ int column(int row) const { return state.column[row]; }

  // Finds the two smallest values of sum(column) over all columns. All threads get the result.
  template <typename Sum>
  __device__ TwoSmallest find_two_smallest(const Sum& sum) {
    TwoSmallest smallest{INFINITY, INFINITY, -1};
    for (int j = static_cast<int>(threadIdx.x); j < columns; j += kThreads) {
      const unsigned tagged_column =
          static_cast<unsigned>(j) | (state.owner[j] >= 0 ? kHasOwner : 0);
      smallest.add({sum(j), INFINITY, static_cast<int>(tagged_column)});
    }
    smallest = reduce_block(smallest, warp_values[turn]);
    turn = 1 - turn;
    smallest.tagged_column =
        static_cast<int>(static_cast<unsigned>(smallest.tagged_column) & ~kHasOwner);
    return smallest;
  }

  __device__ math::assignment::Bid bid(int row) {
    const TwoSmallest all = find_two_smallest([&](int j) { return cost(row, j) + state.price[j]; });
    return {all.least, all.second, all.tagged_column};
  }

  // Initialises the prices. They may differ only because all columns will have owners. The price of
  // a column is minus the least by which a cost in it exceeds the minimum of its row.
  __device__ void initialise_prices(int rows) {
    for (int row = static_cast<int>(threadIdx.x); row < rows; row += kThreads) {
      double least = cost(row, 0);
      for (int j = 1; j < columns; ++j) least = math::min(least, cost(row, j));
      state.distance[row] = least;
    }
    __syncthreads();
    for (int j = static_cast<int>(threadIdx.x); j < columns; j += kThreads) {
      double least = INFINITY;
      for (int row = 0; row < rows; ++row) {
        least = math::min(least, cost(row, j) - state.distance[row]);
      }
      state.price[j] = -least;
    }
  }

  // One thread writes, after all threads have read the previous values.
  __device__ void assign(int column, int row, double price) {
    __syncthreads();
    if (threadIdx.x == 0) {
      if (state.owner[column] >= 0) state.column[state.owner[column]] = -1;
      state.owner[column] = row;
      state.column[row] = column;
      state.price[column] = price;
    }
    __syncthreads();
  }

  __device__ math::assignment::Nearest start_paths(int row) {
    const TwoSmallest all = find_two_smallest([&](int j) {
      state.predecessor[j] = row;
      return state.distance[j] = cost(row, j) + state.price[j];
    });
    return {all.least, all.tagged_column};
  }

  // An infinite price keeps other paths away from the column.
  __device__ void close(const math::assignment::Nearest& nearest) {
    __syncthreads();
    const int j = nearest.column;
    if (j % kThreads != static_cast<int>(threadIdx.x)) return;
    state.price_at_close[j] = state.price[j];
    state.distance_at_close[j] = nearest.distance;
    state.price[j] = state.distance[j] = INFINITY;
  }

  __device__ math::assignment::Nearest relax(int row, double offset) {
    const TwoSmallest all = find_two_smallest([&](int j) {
      const double distance = cost(row, j) + state.price[j] - offset;
      if (distance < state.distance[j]) {
        state.distance[j] = distance;
        state.predecessor[j] = row;
      }
      return state.distance[j];
    });
    return {all.least, all.tagged_column};
  }

  __device__ void update_prices(double distance) {
    for (int j = static_cast<int>(threadIdx.x); j < columns; j += kThreads) {
      if (state.price[j] == INFINITY) {
        state.price[j] = state.price_at_close[j] + (distance - state.distance_at_close[j]);
      }
    }
  }

  __device__ void augment(int column, int row) {
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int from = -1; from != row;) {
        from = state.predecessor[column];
        const int next = state.column[from];
        state.owner[column] = from;
        state.column[from] = column;
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
    assignment_kernel(const T* all_input_costs, const int64_t* n_objects, int64_t images,
                      int64_t queries, int64_t max_objects, double* all_costs, double* all_memory,
                      int64_t state_size, int64_t* objects) {
  DETOPS_DYNAMIC_SHARED(dynamic);
  __shared__ TwoSmallest warp_values[2][kWarps];
  const int self = static_cast<int>(threadIdx.x);
  for (int64_t image = blockIdx.x; image < images; image += gridDim.x) {
    const T* input_costs = all_input_costs + image * queries * max_objects;
    // The rows of `costs` are queries or objects, whichever are fewer.
    double* costs = all_costs + image * queries * max_objects;
    int64_t* out = objects + image * queries;
    int64_t n = n_objects == nullptr ? max_objects : n_objects[image];
    n = math::max<int64_t>(0, math::min(n, max_objects));
    const bool by_object = n < queries;
    const int rows = static_cast<int>(by_object ? n : queries);
    const int columns = static_cast<int>(by_object ? queries : n);
    double min_cost = INFINITY, max_cost = -INFINITY;
    for (int64_t i = self; i < queries * n; i += kThreads) {
      const int64_t query = i / n, object = i - query * n;
      const double cost = static_cast<double>(input_costs[query * max_objects + object]);
      costs[by_object ? object * queries + query : i] = cost;
      if (!math::assignment::is_cost(cost)) continue;
      min_cost = math::min(min_cost, cost), max_cost = math::max(max_cost, cost);
    }
    for (int64_t query = self; query < queries; query += kThreads) out[query] = -1;
    min_cost = reduce_block({min_cost, INFINITY, 0}, warp_values[0]).least;
    max_cost = -reduce_block({-max_cost, INFINITY, 0}, warp_values[1]).least;
    if (min_cost > max_cost) continue;
    const double forbidden = math::assignment::forbidden_cost(min_cost, max_cost, rows);
    double* memory = all_memory == nullptr ? reinterpret_cast<double*>(dynamic)
                                           : all_memory + image * state_size;
    BlockColumns block{AssignmentState::from_memory(memory, columns), costs, columns, warp_values};
    for (int64_t i = self; i < queries * n; i += kThreads) {
      if (!math::assignment::is_cost(costs[i])) costs[i] = forbidden;
    }
    for (int j = self; j < columns; j += kThreads) {
      block.state.price[j] = 0;
      block.state.owner[j] = -1;
    }
    for (int row = self; row < rows; row += kThreads) block.state.column[row] = -1;
    __syncthreads();
    if (rows == columns) {
      block.initialise_prices(rows);
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
  const int64_t images = cost.size(0), queries = cost.size(1), max_objects = cost.size(2);
  narrow(queries);
  if (narrow(max_objects) == 0) {
    objects.fill_(-1);
    return;
  }
  const Tensor input_costs = cost.contiguous();
  const Tensor counts = num_objects ? num_objects->to(kLong).contiguous() : Tensor();
  const auto doubles = cost.options().dtype(kDouble);
  const Tensor costs = empty({images, queries * max_objects}, doubles);
  const int64_t bytes =
      AssignmentState::bytes(std::min(queries, max_objects), std::max(queries, max_objects));
  const int64_t state_size = bytes / int64_t(sizeof(double));
  constexpr int64_t kShared = 40 << 10;
  const bool shared = bytes <= kShared;
  const Tensor memory = shared ? Tensor() : empty({images, state_size}, doubles);
  DETOPS_FLOAT_SWITCH(input_costs.scalar_type(), [&] {
    launch(assignment_kernel<scalar_t>,
           {blocks_for(images, 1), kThreads, shared ? size_t(bytes) : 0}, input_costs, counts,
           images, queries, max_objects, costs, memory, state_size, objects);
  });
}

}  // namespace detops::cuda
