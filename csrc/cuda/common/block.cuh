// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>

#include "launch.cuh"

namespace detops::cuda {

// A yes or no of each of a block's threads, in shared memory.
template <int threads = kThreads>
struct Votes {
  static constexpr int kWords = threads / kWarp;
  unsigned words[kWords];

  // By all threads, with a barrier since votes were last read, and one before they are.
  __device__ void put(bool vote) {
    const int self = static_cast<int>(threadIdx.x);
    const unsigned word = __ballot_sync(0xffffffffu, vote);
    if (self % kWarp == 0) words[self / kWarp] = word;
  }

  // Of the threads before thread i.
  __device__ int before(int i) const {
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

// The higher value, and of equals the lower index; an index of -1 is none.
template <typename T>
struct Best {
  T value;
  int64_t index;

  __device__ void add(const Best& o) {
    if (o.index < 0) return;
    if (index < 0 || o.value > value || (o.value == value && o.index < index)) *this = o;
  }
};

// What value.add(other) makes of the values of `lanes` neighbours, a power of two of them; each of
// them gets it. All threads of the warp take part.
template <typename V>
__device__ V join_lanes(V value, int lanes) {
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

// The same for all threads of the block. `of_warps` is in shared memory, and nobody reads it now.
template <int warps, typename V>
__device__ V join_block(const V& mine, V (&of_warps)[warps]) {
  const V of_warp = join_lanes(mine, kWarp);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  return join_lanes(of_warps[threadIdx.x % warps], warps);
}

}  // namespace detops::cuda
