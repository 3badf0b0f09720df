// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdint>

namespace detops::cuda {

constexpr int kThreads = 256;

// Enough blocks for `work` items; kernels stride over what a bounded grid leaves.
inline unsigned blocks_for(int64_t work, int64_t per_block = kThreads) {
  constexpr int64_t kMaxBlocks = 1 << 20;
  return static_cast<unsigned>(
      std::clamp<int64_t>((work + per_block - 1) / per_block, 1, kMaxBlocks));
}

// `for (int64_t i : this thread's share of [0, n))`
#define DETOPS_FOR_EACH(i, n)                                                      \
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < int64_t(n); \
       i += int64_t(gridDim.x) * blockDim.x)

}  // namespace detops::cuda
