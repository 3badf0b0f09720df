// SPDX-License-Identifier: MIT
#include "../../math/linear_assignment.h"
#include "../common/host.h"

namespace detops::cpu {

// The costs of one image.
template <typename T>
struct AssignmentInput {
  const T* cost;  // [queries, objects]
  int64_t stride, queries, objects;
};

struct ClosedColumn {
  double distance, price;
  int column;
};

// Workspace of the assignment of one image. Rows are the fewer of queries and objects.
struct AssignmentScratch {
  double* costs;             // [rows, columns rounded up to whole vectors]
  double *price, *distance;  // [columns]
  int64_t* from;             // [columns], the row that leads to each; as wide as a distance
  int* owner;                // [columns], the row assigned to each, or -1
  int* column;               // [rows], the column assigned to each, or -1
  ClosedColumn* closed;      // [rows]
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../boxes/linear_assignment.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kAssignmentPadding = 8;  // the most columns in a vector
constexpr int64_t kCostsPerThread = 1 << 13;

// Owns the memory of an AssignmentScratch for images up to a given size.
struct AssignmentMemory {
  Buffer<double> doubles;
  Buffer<int64_t> from;
  Buffer<int> ints;
  Buffer<ClosedColumn> closed;
  AssignmentScratch scratch;

  AssignmentMemory(int64_t queries, int64_t objects) {
    const int64_t max_rows = std::min(queries, objects) + kAssignmentPadding;
    const int64_t max_columns = std::max(queries, objects) + kAssignmentPadding;
    double* costs = doubles.reserve((max_rows + 2) * max_columns);
    double* prices = costs + max_rows * max_columns;
    int* owners = ints.reserve(max_columns + max_rows);
    scratch = {costs,
               prices,
               prices + max_columns,
               from.reserve(max_columns),
               owners,
               owners + max_columns,
               closed.reserve(max_rows)};
  }
};

// Returns the number of objects of each image: [B].
std::vector<int64_t> object_counts(const Tensor& cost, const std::optional<Tensor>& num_objects) {
  const int64_t max_objects = cost.size(2);
  std::vector<int64_t> counts(cost.size(0), max_objects);
  if (!num_objects) return counts;
  const Tensor values = num_objects->to(kLong).contiguous();
  std::copy_n(values.const_data_ptr<int64_t>(), counts.size(), counts.begin());
  for (size_t i = 0; i < counts.size(); ++i) {
    check(counts[i] >= 0 && counts[i] <= max_objects,
          "detops.linear_assignment: num_objects must be 0 to ", max_objects, ", got ", counts[i],
          " at index ", i);
  }
  return counts;
}

}  // namespace

void linear_assignment(const Tensor& cost, const std::optional<Tensor>& num_objects,
                       Tensor& objects) {
  const std::vector<int64_t> counts = object_counts(cost, num_objects);
  const Tensor rows = cost.size(2) <= 1 || cost.stride(2) == 1 ? cost : cost.contiguous();
  const int64_t images = cost.size(0), queries = cost.size(1), max_objects = cost.size(2);
  int64_t* out = objects.mutable_data_ptr<int64_t>();
  const int64_t grain = grain_for(kCostsPerThread, queries * max_objects + 1);
  with_element_type(rows.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const T* costs = elements<T>(rows);
    const auto assign = DETOPS_IN_USE(assign_image<T>);
    parallel_for(images, grain, [&](int64_t i, int64_t end) {
      const AssignmentMemory memory(queries, max_objects);
      for (; i < end; ++i) {
        assign({costs + i * rows.stride(0), rows.stride(1), queries, counts[i]}, memory.scratch,
               out + i * queries);
      }
    });
  });
}

}  // namespace detops::cpu
