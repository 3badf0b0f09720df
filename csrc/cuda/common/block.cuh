// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>

#include "launch.cuh"

namespace detops::cuda {

// One boolean per thread of a block, stored as bits in shared memory.
template <int threads = kThreads>
struct Votes {
  static constexpr int kWords = threads / kWarp;
  unsigned words[kWords];

  // All threads must call it. Requires a barrier after the previous read of the votes, and another
  // before the next read.
  __device__ void put(bool vote) {
    const int self = static_cast<int>(threadIdx.x);
    const unsigned word = __ballot_sync(0xffffffffu, vote);
    if (self % kWarp == 0) words[self / kWarp] = word;
  }

  // Returns the number of true votes among the threads before thread i.
  __device__ int count_before(int i) const {
    int n = __popc(words[i / kWarp] & ((1u << i % kWarp) - 1));
    for (int w = 0; w < i / kWarp; ++w) n += __popc(words[w]);
    return n;
  }

  __device__ int total() const {
    int n = 0;
    for (int w = 0; w < kWords; ++w) n += __popc(words[w]);
    return n;
  }
};

// Running maximum: the higher value wins, then the lower index. An index of -1 means empty.
template <typename T>
struct ArgMax {
  T value;
  int64_t index;

  __device__ void add(const ArgMax& o) {
    if (o.index < 0) return;
    if (index < 0 || o.value > value || (o.value == value && o.index < index)) *this = o;
  }
};

// Reduces the values of groups of `lanes` adjacent lanes, a power of two, with value.add(other).
// Every lane gets the result of its group. All threads of the warp must call it.
template <typename V>
__device__ V reduce_lanes(V value, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    unsigned words[sizeof(V) / sizeof(unsigned)];
    std::memcpy(words, &value, sizeof(V));
    for (unsigned& word : words) word = __shfl_xor_sync(0xffffffffu, word, step);
    V other;
    std::memcpy(&other, words, sizeof(V));
    value.add(other);
  }
  return value;
}

// The same for all threads of the block. `warp_values` is scratch in shared memory: no thread may
// still be reading it.
template <int warps, typename V>
__device__ V reduce_block(const V& value, V (&warp_values)[warps]) {
  const V warp_value = reduce_lanes(value, kWarp);
  if (threadIdx.x % kWarp == 0) warp_values[threadIdx.x / kWarp] = warp_value;
  __syncthreads();
  return reduce_lanes(warp_values[threadIdx.x % warps], warps);
}

}  // namespace detops::cuda
