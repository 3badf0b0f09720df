// SPDX-License-Identifier: MIT
#pragma once

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

  __device__ void cast(bool vote) {
    put(vote);
    __syncthreads();
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

}  // namespace detops::cuda
