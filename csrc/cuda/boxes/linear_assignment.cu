// SPDX-License-Identifier: MIT
#include "../../math/linear_assignment.h"

#include "../../ops.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

constexpr int kAssignmentThreads = 256, kAssignmentWarps = kAssignmentThreads / kWarp;

template <typename T>
struct AssignmentParams {
  const T* cost;             // [B, N, M]
  const int64_t* n_objects;  // [B], or null
  int64_t images, queries, most_objects;
  double* costs;     // [B, N * M], an image's rows: queries or objects, whichever are fewer
  double* memory;    // [B, AssignmentMemory::bytes], where the block has too little
  int64_t* objects;  // [B, N], out
};

// What a block knows of the columns and rows of one image.
struct AssignmentMemory {
  double *price, *distance;          // [columns]
  double *open_price, *at_distance;  // [columns], of closed ones, as they were then
  int *owner, *from;                 // [columns], the row that has it, and that leads to it
  int* column;                       // [rows]

  DETOPS_HD static int64_t bytes(int64_t rows, int64_t columns) {
    return columns * (4 * sizeof(double) + 2 * sizeof(int)) + (rows + 1) / 2 * 2 * sizeof(int);
  }

  __device__ AssignmentMemory(double* begin, int64_t columns)
      : price(begin),
        distance(price + columns),
        open_price(distance + columns),
        at_distance(open_price + columns),
        owner(reinterpret_cast<int*>(at_distance + columns)),
        from(owner + columns),
        column(from + columns) {}
};

// The two least sums that some threads have seen, and the place of the least: by its index, behind
// those of columns without an owner.
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

// See math::assignment::solve: all threads of the block go the same way, and thread t owns every
// 256th column from t on.
struct BlockColumns {
  AssignmentMemory at;
  const double* costs;
  int columns;
  Seen* of_warps;  // [2, kAssignmentWarps] in shared memory, in turns, to save a barrier
  int turn = 0;

  __device__ double cost(int row, int column) const {
    return costs[int64_t(row) * columns + column];
  }
  __device__ double price(int column) const { return at.price[column]; }
  __device__ int owner(int column) const { return at.owner[column]; }
  __device__ int column(int row) const { return at.column[row]; }

  __device__ static Seen nothing() { return {INFINITY, INFINITY, -1}; }

  __device__ Seen seen(int column, double sum) const {
    const unsigned place = static_cast<unsigned>(column) | (at.owner[column] >= 0 ? kHasOwner : 0);
    return {sum, INFINITY, static_cast<int>(place)};
  }

  __device__ Seen of_all(Seen mine) {
    const int self = static_cast<int>(threadIdx.x);
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const Seen other{__shfl_xor_sync(0xffffffffu, mine.least, step),
                       __shfl_xor_sync(0xffffffffu, mine.second, step),
                       __shfl_xor_sync(0xffffffffu, mine.place, step)};
      mine.add(other);
    }
    Seen* warps = of_warps + turn * kAssignmentWarps;
    turn = 1 - turn;
    if (self % kWarp == 0) warps[self / kWarp] = mine;
    __syncthreads();
    Seen all = warps[0];
    for (int i = 1; i < kAssignmentWarps; ++i) all.add(warps[i]);
    all.place = static_cast<int>(static_cast<unsigned>(all.place) & ~kHasOwner);
    return all;
  }

  __device__ math::assignment::Offer offer(int row) {
    Seen mine = nothing();
    for (int j = static_cast<int>(threadIdx.x); j < columns; j += kAssignmentThreads) {
      mine.add(seen(j, cost(row, j) + at.price[j]));
    }
    const Seen all = of_all(mine);
    return {all.least, all.second, all.place};
  }

  // Where all columns will have owners, their first prices may differ: the least that a row pays
  // above what is least for it.
  __device__ void first_prices(int rows) {
    for (int row = static_cast<int>(threadIdx.x); row < rows; row += kAssignmentThreads) {
      double least = cost(row, 0);
      for (int j = 1; j < columns; ++j) least = math::min(least, cost(row, j));
      at.distance[row] = least;
    }
    __syncthreads();
    for (int j = static_cast<int>(threadIdx.x); j < columns; j += kAssignmentThreads) {
      double least = INFINITY;
      for (int row = 0; row < rows; ++row) {
        least = math::min(least, cost(row, j) - at.distance[row]);
      }
      at.price[j] = -least;
    }
  }

  // What all threads have read of it, one may change then.
  __device__ void give(int column, int row, double price) {
    __syncthreads();
    if (threadIdx.x == 0) {
      if (at.owner[column] >= 0) at.column[at.owner[column]] = -1;
      at.owner[column] = row;
      at.column[row] = column;
      at.price[column] = price;
    }
    __syncthreads();
  }

  __device__ math::assignment::Nearest open(int row) {
    Seen mine = nothing();
    for (int j = static_cast<int>(threadIdx.x); j < columns; j += kAssignmentThreads) {
      at.distance[j] = cost(row, j) + at.price[j];
      at.from[j] = row;
      mine.add(seen(j, at.distance[j]));
    }
    const Seen all = of_all(mine);
    return {all.least, all.place};
  }

  // An infinite price keeps paths away.
  __device__ void close(const math::assignment::Nearest& nearest) {
    __syncthreads();
    const int j = nearest.column;
    if (j % kAssignmentThreads != static_cast<int>(threadIdx.x)) return;
    at.open_price[j] = at.price[j];
    at.at_distance[j] = nearest.distance;
    at.price[j] = at.distance[j] = INFINITY;
  }

  __device__ math::assignment::Nearest relax(int row, double passed) {
    Seen mine = nothing();
    for (int j = static_cast<int>(threadIdx.x); j < columns; j += kAssignmentThreads) {
      const double distance = cost(row, j) + at.price[j] - passed;
      if (distance < at.distance[j]) {
        at.distance[j] = distance;
        at.from[j] = row;
      }
      mine.add(seen(j, at.distance[j]));
    }
    const Seen all = of_all(mine);
    return {all.least, all.place};
  }

  __device__ void settle(double distance) {
    for (int j = static_cast<int>(threadIdx.x); j < columns; j += kAssignmentThreads) {
      if (at.price[j] == INFINITY) {
        at.price[j] = at.open_price[j] + (distance - at.at_distance[j]);
      }
    }
  }

  __device__ void extend(int column, int row) {
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

// The least and the most of the block's numbers.
__device__ inline void extremes(double& least, double& most) {
  __shared__ double leasts[kAssignmentWarps], mosts[kAssignmentWarps];
  const int self = static_cast<int>(threadIdx.x);
  for (int step = kWarp / 2; step > 0; step /= 2) {
    least = math::min(least, __shfl_xor_sync(0xffffffffu, least, step));
    most = math::max(most, __shfl_xor_sync(0xffffffffu, most, step));
  }
  if (self % kWarp == 0) leasts[self / kWarp] = least, mosts[self / kWarp] = most;
  __syncthreads();
  for (int i = 0; i < kAssignmentWarps; ++i) {
    least = math::min(least, leasts[i]), most = math::max(most, mosts[i]);
  }
  __syncthreads();
}

// A block per image: each step of the search is one pass over the columns, and depends on the one
// before.
template <typename T>
__global__ void __launch_bounds__(kAssignmentThreads) assignment_kernel(AssignmentParams<T> p) {
  DETOPS_DYNAMIC_SHARED(dynamic);
  __shared__ Seen of_warps[2 * kAssignmentWarps];
  const int self = static_cast<int>(threadIdx.x);
  const int64_t words = AssignmentMemory::bytes(math::min(p.queries, p.most_objects),
                                                math::max(p.queries, p.most_objects)) /
                        sizeof(double);
  for (int64_t image = blockIdx.x; image < p.images; image += gridDim.x) {
    const T* given = p.cost + image * p.queries * p.most_objects;
    double* costs = p.costs + image * p.queries * p.most_objects;
    int64_t* out = p.objects + image * p.queries;
    int64_t n = p.n_objects == nullptr ? p.most_objects : p.n_objects[image];
    n = math::max<int64_t>(0, math::min(n, p.most_objects));
    const bool by_object = n < p.queries;
    const int rows = static_cast<int>(by_object ? n : p.queries);
    const int columns = static_cast<int>(by_object ? p.queries : n);
    double least = INFINITY, most = -INFINITY;
    for (int64_t i = self; i < p.queries * n; i += kAssignmentThreads) {
      const int64_t query = i / n, object = i - query * n;
      const double cost = static_cast<double>(given[query * p.most_objects + object]);
      costs[by_object ? object * p.queries + query : i] = cost;
      if (!math::assignment::is_cost(cost)) continue;
      least = math::min(least, cost), most = math::max(most, cost);
    }
    for (int64_t query = self; query < p.queries; query += kAssignmentThreads) out[query] = -1;
    extremes(least, most);
    if (least > most) continue;
    const double forbidden = math::assignment::forbidden_cost(least, most, rows);
    double* memory =
        p.memory == nullptr ? reinterpret_cast<double*>(dynamic) : p.memory + image * words;
    BlockColumns block{AssignmentMemory(memory, columns), costs, columns, of_warps};
    for (int64_t i = self; i < p.queries * n; i += kAssignmentThreads) {
      if (!math::assignment::is_cost(costs[i])) costs[i] = forbidden;
    }
    for (int j = self; j < columns; j += kAssignmentThreads) {
      block.at.price[j] = 0;
      block.at.owner[j] = -1;
    }
    for (int row = self; row < rows; row += kAssignmentThreads) block.at.column[row] = -1;
    __syncthreads();
    if (rows == columns) {
      block.first_prices(rows);
      __syncthreads();
    }
    math::assignment::solve(block, rows);
    for (int row = self; row < rows; row += kAssignmentThreads) {
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
  narrow("linear_assignment", queries);
  if (narrow("linear_assignment", most) == 0) {
    objects.fill_(-1);
    return;
  }
  const Tensor given = cost.contiguous();
  const Tensor counts = num_objects ? as_type(*num_objects, kLong).contiguous() : Tensor();
  const Tensor costs = empty({images, queries * most}, cost.options().dtype(kDouble));
  const int64_t bytes = AssignmentMemory::bytes(std::min(queries, most), std::max(queries, most));
  constexpr int64_t kShared = 40 << 10;
  const bool shared = bytes <= kShared;
  const Tensor memory =
      shared ? Tensor()
             : empty({images, bytes / int64_t(sizeof(double))}, cost.options().dtype(kDouble));
  DETOPS_FLOAT_SWITCH(given.scalar_type(), [&] {
    const AssignmentParams<scalar_t> p{given.const_data_ptr<scalar_t>(),
                                       num_objects ? counts.const_data_ptr<int64_t>() : nullptr,
                                       images,
                                       queries,
                                       most,
                                       costs.mutable_data_ptr<double>(),
                                       shared ? nullptr : memory.mutable_data_ptr<double>(),
                                       objects.mutable_data_ptr<int64_t>()};
    launch("linear_assignment", assignment_kernel<scalar_t>,
           {blocks_for(images, 1), kAssignmentThreads, shared ? size_t(bytes) : 0}, p);
  });
}

}  // namespace detops::cuda
