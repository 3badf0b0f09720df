// SPDX-License-Identifier: MIT
#include "../../boxes/box_lists.h"
#include "../../math/box_coder.h"
#include "../common/launch.cuh"

// One thread per anchor in the backward pass: its deltas add into its gradient without atomics.
namespace detops::cuda {
namespace {

template <typename Each>
__global__ void each_kernel(int64_t n, Each each) {
  DETOPS_FOR_EACH(i, n) { each(i); }
}

template <typename Each>
void for_each(const char* op, int64_t n, const Each& each) {
  launch(op, each_kernel<Each>, blocks_for(n), n, each);
}

}  // namespace

#include "../../boxes/box_coder.inl"

}  // namespace detops::cuda
