// SPDX-License-Identifier: MIT
#pragma once

#include "../common/geometry.h"
#include "../common/launch.cuh"

// What the RoI ops share.
namespace detops::cuda {

// The image that a row of boxes names; -1 for a batch index out of range, which pools to zeros.
template <typename A>
__device__ int64_t image_of(const A* roi, int64_t images) {
  const bool valid = roi[0] >= 0 && roi[0] < A(images);
#ifdef DETOPS_DEBUG
  CUDA_KERNEL_ASSERT(valid && "detops: a batch index of boxes is out of range");
#endif
  return valid ? static_cast<int64_t>(roi[0]) : -1;
}

}  // namespace detops::cuda
