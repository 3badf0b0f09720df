// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

// CUDA's words for a host compiler: the kernels of csrc/cuda run on the CPU, a block at a time,
// each thread of it a fiber. So the index maps, bounds, tiles and barriers that a GPU would run are
// tested where there is none: EMULATE_CUDA=1 builds a detops whose CPU ops are these kernels.
//
// What it cannot show: caches, atomics, the memory model between barriers, speed. What it shows and
// a GPU would not: a barrier that not all threads reach, a vote of a warp that threads have left,
// shared memory that is read before it is written, and, when blocks and their threads are run in
// the opposite order (DETOPS_EMULATION=backwards), results that depend on their order.

#define __global__
#define __noinline__
#define __device__
#define __host__
#define __forceinline__ inline
// Blocks run one after another on the thread that launches them, so a block's memory may be that
// thread's. Memory of a thread lies in one piece, which run() fills with NaN before each block.
#define __shared__ static thread_local
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace detops::cuda::emulation {

// A kernel's body, run by every thread of the grid.
void run(dim3 blocks, unsigned threads, size_t shared, const std::function<void()>& body);

extern dim3 block_place, block_count, thread_place, thread_count;
extern unsigned char* dynamic_memory;

void block_barrier();

// Gives every lane the values of its warp's 32. All of them must take part: what a lane that has
// left would have said is undefined on a GPU.
void exchange(uint64_t value, uint64_t (&everyone)[32]);

}  // namespace detops::cuda::emulation

#define blockIdx (::detops::cuda::emulation::block_place)
#define gridDim (::detops::cuda::emulation::block_count)
#define threadIdx (::detops::cuda::emulation::thread_place)
#define blockDim (::detops::cuda::emulation::thread_count)

inline void __syncthreads() { detops::cuda::emulation::block_barrier(); }
inline void __threadfence() {}
inline int atomicAdd(int* to, int value) { return std::exchange(*to, *to + value); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int with) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t mine = 0, everyone[32];
  __builtin_memcpy(&mine, &value, sizeof(T));
  detops::cuda::emulation::exchange(mine, everyone);
  __builtin_memcpy(&value, &everyone[(threadIdx.x ^ with) % 32], sizeof(T));
  return value;
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  uint64_t everyone[32];
  detops::cuda::emulation::exchange(vote, everyone);
  unsigned votes = 0;
  for (unsigned i = 0; i < 32; ++i) votes |= static_cast<unsigned>(everyone[i]) << i;
  return votes;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }

using std::max;
using std::min;
