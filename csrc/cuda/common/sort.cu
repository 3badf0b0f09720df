// SPDX-License-Identifier: MIT
#include "sort.cuh"

#ifndef DETOPS_EMULATE_CUDA
#include <cub/device/device_radix_sort.cuh>
#endif

#include <numeric>

#include "../../math/descending_key.h"
#include "vector.cuh"

namespace detops::cuda {
namespace {

// Up to this many scores are ranked by comparing all pairs, which takes one launch. A sort takes
// several.
constexpr int kMaxRanked = 4096;

template <typename T>
__device__ auto sort_key(T score) {
  return math::descending_key(static_cast<accumulate_t<T>>(score));
}

// One warp per score: counts the scores that come before it.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    rank_kernel(const T* scores, int64_t stride, int count, int* order) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / kWarp);
  for (int i = first; i < count; i += static_cast<int>(gridDim.x * blockDim.x / kWarp)) {
    const auto key = sort_key(scores[i * stride]);
    Vector<int, 1> rank{};
    for (int j = lane; j < count; j += kWarp) {
      const auto other = sort_key(scores[j * stride]);
      rank.at[0] += other < key || (other == key && j < i);
    }
    sum_over_lanes(rank, kWarp);
    if (lane == 0) order[rank.at[0]] = i;
  }
}

#ifdef DETOPS_EMULATE_CUDA
template <typename Key>
void sort(const Tensor& keys, const int* values, int count, int* sorted) {
  const Key* key = static_cast<const Key*>(keys.const_data_ptr());
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return key[i] < key[j]; });
  for (int i = 0; i < count; ++i) sorted[i] = values[order[i]];
}
#else
// Calls a cub function, sort(workspace, bytes), twice: first for the size of its workspace, then
// with the workspace.
template <typename Sort>
void with_workspace(const Options& options, const Sort& sort) {
  size_t bytes = 0;
  const auto run = [&](void* workspace) {
    const cudaError_t error = sort(workspace, bytes);
    check(error == cudaSuccess, "sorting failed: ", cudaGetErrorString(error));
  };
  run(nullptr);
  run(empty({int64_t(bytes)}, options.dtype(kByte)).mutable_data_ptr());
}

template <typename Key>
void sort(const Tensor& keys, const int* values, int count, int* sorted) {
  const Tensor sorted_keys = empty_like(keys);
  with_workspace(keys.options(), [&](void* workspace, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(
        workspace, bytes, static_cast<const Key*>(keys.const_data_ptr()),
        static_cast<Key*>(sorted_keys.mutable_data_ptr()), values, sorted, count, 0,
        8 * sizeof(Key), current_stream());
  });
}
#endif

}  // namespace

Tensor sort_by_key(const Tensor& keys, const Tensor& values) {
  const Tensor sorted = empty_like(values);
  const int count = narrow(keys.size(0));
  if (count == 0) return sorted;
  const auto run = keys.scalar_type() == kLong ? sort<uint64_t> : sort<uint32_t>;
  run(keys, elements(values), count, elements(sorted));
  return sorted;
}

Tensor sort_by_second(const Tensor& pairs, int64_t max_second) {
#ifdef DETOPS_EMULATE_CUDA
  using Pair = Vector<int, 2>;
  Pair* first = elements(pairs);
  std::stable_sort(first, first + pairs.size(0),
                   [](const Pair& a, const Pair& b) { return a.at[1] < b.at[1]; });
  return pairs;
#else
  // Each pair is sorted as one uint64. Devices are little-endian, so its second number is in the
  // upper bits.
  constexpr int kLowerBits = 32;
  int bits = 1;
  while (max_second >> bits > 0) ++bits;
  const Tensor other = empty_like(pairs);
  cub::DoubleBuffer<uint64_t> packed(static_cast<uint64_t*>(pairs.mutable_data_ptr()),
                                     static_cast<uint64_t*>(other.mutable_data_ptr()));
  with_workspace(pairs.options(), [&](void* workspace, size_t& bytes) {
    return cub::DeviceRadixSort::SortKeys(workspace, bytes, packed, narrow(pairs.size(0)),
                                          kLowerBits, kLowerBits + bits, current_stream());
  });
  return packed.selector == 0 ? pairs : other;
#endif
}

Tensor selection_order(const Tensor& scores) {
  const int count = narrow(scores.size(0));
  const int64_t stride = scores.stride(0);
  const Tensor order = empty({count}, scores.options().dtype(kInt));
  return DETOPS_FLOAT_SWITCH(scores.scalar_type(), [&] {
    using Key = math::DescendingKey<accumulate_t<scalar_t>>;
    const scalar_t* score = elements(scores);
    if (count <= kMaxRanked) {
      launch(rank_kernel<scalar_t>, blocks_for(count, kThreads / kWarp), score, stride, count,
             order);
      return order;
    }
    const auto type = sizeof(Key) == sizeof(int64_t) ? kLong : kInt;
    const Tensor keys = empty({count}, scores.options().dtype(type));
    auto* key = static_cast<Key*>(keys.mutable_data_ptr());
    int* index = elements(order);
    for_each(count, [=] __device__(int64_t i) {
      key[i] = sort_key(score[i * stride]);
      index[i] = static_cast<int>(i);
    });
    return sort_by_key(keys, order);
  });
}

}  // namespace detops::cuda
