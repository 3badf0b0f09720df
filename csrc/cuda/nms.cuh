// SPDX-License-Identifier: MIT
#pragma once

#include "../ops.h"
#include "launch.cuh"

// Boxes in score order are resolved a chunk at a time: one block settles the chunk itself, then the
// whole device tests the boxes behind it against what the chunk kept. Memory is O(N), nothing is
// copied to the host, and the only synchronisation is for the size of the result.
namespace detops::cuda {

constexpr int kNmsChunk = 512;

// Test is callable on the device: test(by, box) says whether one box would suppress another, both
// given by their places in score order.
template <typename Test>
struct NmsParams {
  Test test;
  const int64_t* labels;  // [N], or null
  int64_t count;          // N
  bool* keep;             // [N], all true at first
  int32_t* kept;          // [kNmsChunk], offsets into the chunk in work
  int32_t* n_kept;        // [1]
};

template <typename Test>
__device__ bool suppressed(const NmsParams<Test>& p, int64_t by, int64_t box) {
  if (p.labels != nullptr && p.labels[by] != p.labels[box]) return false;
  return p.test(by, box);
}

template <typename Test>
__global__ void resolve_chunk_kernel(NmsParams<Test> p, int64_t begin) {
  __shared__ bool alive[kNmsChunk];
  const int self = static_cast<int>(threadIdx.x);
  const int size = static_cast<int>(min(int64_t(kNmsChunk), p.count - begin));
  alive[self] = self < size && p.keep[begin + self];
  for (int i = 0; i < size; ++i) {
    __syncthreads();
    if (alive[i] && self > i && alive[self] && suppressed(p, begin + i, begin + self)) {
      alive[self] = false;
    }
  }
  __syncthreads();
  if (self < size) p.keep[begin + self] = alive[self];
  if (self == 0) {
    int32_t n = 0;
    for (int i = 0; i < size; ++i) {
      if (alive[i]) p.kept[n++] = i;
    }
    *p.n_kept = n;
  }
}

template <typename Test>
__global__ void suppress_rest_kernel(NmsParams<Test> p, int64_t begin) {
  const int64_t rest = begin + kNmsChunk;
  const int32_t n = *p.n_kept;
  DETOPS_FOR_EACH(offset, p.count - rest) {
    const int64_t box = rest + offset;
    if (!p.keep[box]) continue;
    for (int32_t i = 0; i < n; ++i) {
      if (suppressed(p, begin + p.kept[i], box)) {
        p.keep[box] = false;
        break;
      }
    }
  }
}

// The order of selection: NaN first, ties in input order.
inline Tensor selection_order(const Tensor& scores) {
  // Adding zero turns -0 into +0, so that the two tie.
  return std::get<1>((scores.to(compute_type(scores.scalar_type())) + 0)
                         .sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
}

// The indices in `order`, at least one, of the boxes that no kept box before them suppresses.
template <typename Test>
Tensor select_boxes(const char* op, const Tensor& order, const Tensor* idxs, const Test& test) {
  const int64_t count = order.size(0);
  const Tensor labels = idxs ? idxs->to(at::kLong).index_select(0, order) : Tensor();
  const Tensor keep = at::ones({count}, order.options().dtype(at::kBool));
  const Tensor kept = at::empty({kNmsChunk + 1}, order.options().dtype(at::kInt));
  const NmsParams<Test> p{test,
                          labels.defined() ? labels.const_data_ptr<int64_t>() : nullptr,
                          count,
                          keep.mutable_data_ptr<bool>(),
                          kept.mutable_data_ptr<int32_t>(),
                          kept.mutable_data_ptr<int32_t>() + kNmsChunk};
  for (int64_t begin = 0; begin < count; begin += kNmsChunk) {
    launch(op, resolve_chunk_kernel<Test>, {1, kNmsChunk}, p, begin);
    if (begin + kNmsChunk >= count) break;
    launch(op, suppress_rest_kernel<Test>, blocks_for(count - begin - kNmsChunk), p, begin);
  }
  return order.masked_select(keep);
}

}  // namespace detops::cuda
