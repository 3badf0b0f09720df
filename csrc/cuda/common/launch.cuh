// SPDX-License-Identifier: MIT
#pragma once

#ifdef DETOPS_EMULATE_CUDA
#include "../emulation/emulation.h"
#else
#include <cuda_runtime.h>
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "../../ops.h"
#include "geometry.h"

namespace detops::cuda {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

// How a kernel is started; a number of blocks alone is enough.
struct Launch {
  dim3 blocks;
  unsigned threads = kThreads;
  size_t shared = 0;  // bytes

  Launch(unsigned n, unsigned n_threads = kThreads, size_t n_shared = 0)
      : blocks(n), threads(n_threads), shared(n_shared) {}
  Launch(dim3 n, unsigned n_threads = kThreads, size_t n_shared = 0)
      : blocks(n), threads(n_threads), shared(n_shared) {}
};

// Enough blocks for `work` items; kernels stride over what a bounded grid leaves.
inline unsigned blocks_for(int64_t work, int64_t per_block = kThreads) {
#ifdef DETOPS_EMULATE_CUDA
  constexpr int64_t kMaxBlocks = 3;  // that kernels do stride is seen in small tests
#else
  constexpr int64_t kMaxBlocks = 1 << 20;
#endif
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(work, per_block), 1, kMaxBlocks));
}

// A size that a kernel counts in 32 bits.
inline int narrow(const char* op, int64_t size) {
  check(std::abs(size) <= std::numeric_limits<int>::max(), "detops.", op, ": a size of ", size,
        " is beyond what a GPU's kernels take");
  return static_cast<int>(size);
}

// Starts a kernel on the current stream. A launch that fails says whose it was.
template <typename... Parameters, typename... Arguments>
void launch(const char* op, void (*kernel)(Parameters...), const Launch& how,
            Arguments&&... arguments) {
#ifdef DETOPS_EMULATE_CUDA
  emulation::run(how.blocks, how.threads, how.shared,
                 [&] { kernel(static_cast<Parameters>(arguments)...); });
#else
  int32_t device = 0;
  void* of_torch = nullptr;
  check_status(aoti_torch_get_current_device_index(&device), "current device");
  check_status(aoti_torch_get_current_cuda_stream(device, &of_torch), "current stream");
  const auto stream = static_cast<cudaStream_t>(of_torch);
  // clang-format off
  kernel<<<how.blocks, how.threads, how.shared, stream>>>(static_cast<Parameters>(arguments)...);
  // clang-format on
  const cudaError_t error = cudaGetLastError();
  check(error == cudaSuccess, "detops.", op, ": the launch of ", how.blocks.x, " x ", how.blocks.y,
        " blocks of ", how.threads, " threads failed: ", cudaGetErrorString(error));
#endif
}

// The memory of a block whose size the launch tells, as bytes.
#ifdef DETOPS_EMULATE_CUDA
#define DETOPS_DYNAMIC_SHARED(name) unsigned char* const name = emulation::dynamic_memory
#else
#define DETOPS_DYNAMIC_SHARED(name) extern __shared__ unsigned char name[]
#endif

// `for (int64_t i : this thread's share of [0, n))`
#define DETOPS_FOR_EACH(i, n)                                                      \
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < int64_t(n); \
       i += int64_t(gridDim.x) * blockDim.x)

}  // namespace detops::cuda
