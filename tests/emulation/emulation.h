// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

// CUDA's keywords and functions for a host compiler. The kernels of csrc/cuda run on the CPU, one
// block at a time, with a fiber per thread. This tests their index maps, bounds, tiles and barriers
// without a GPU: EMULATE_CUDA=1 builds a detops whose CPU ops are these kernels.
//
// The emulation does not model caches, atomics, the memory order between barriers, or speed. Unlike
// a GPU, it detects barriers that some threads do not reach, warp votes after threads have exited,
// and reads of shared memory before it is written. With DETOPS_EMULATION=backwards it runs blocks
// and threads in the opposite order, which reveals results that depend on their order.

#define __global__
#define __noinline__
#define __device__
#define __host__
#define __forceinline__ inline
// Blocks run one after another on the thread that launches them, so shared memory can be
// thread_local. These variables are contiguous, and run() fills them with NaN before each block.
#define __shared__ static thread_local
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace detops::cuda::emulation {

// Runs a kernel's body in every thread of the grid.
void run(dim3 blocks, unsigned threads, size_t shared, const std::function<void()>& body);

extern dim3 block_index, block_count, thread_index, thread_count;
extern unsigned char* dynamic_memory;

void block_barrier();

// Returns the values of all 32 lanes of the calling lane's warp, until its next call. All of them
// must call it: on a GPU, the value of a lane that has exited is undefined.
const uint64_t* exchange(uint64_t value);

}  // namespace detops::cuda::emulation

#define blockIdx (::detops::cuda::emulation::block_index)
#define gridDim (::detops::cuda::emulation::block_count)
#define threadIdx (::detops::cuda::emulation::thread_index)
#define blockDim (::detops::cuda::emulation::thread_count)

inline void __syncthreads() { detops::cuda::emulation::block_barrier(); }
inline void __threadfence() {}
inline int atomicAdd(int* to, int value) { return std::exchange(*to, *to + value); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int lane_mask) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  const uint64_t* lane_values = detops::cuda::emulation::exchange(bits);
  __builtin_memcpy(&value, &lane_values[(threadIdx.x ^ lane_mask) % 32], sizeof(T));
  return value;
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  const uint64_t* lane_values = detops::cuda::emulation::exchange(vote);
  unsigned votes = 0;
  for (unsigned i = 0; i < 32; ++i) votes |= static_cast<unsigned>(lane_values[i]) << i;
  return votes;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }

using std::max;
using std::min;
