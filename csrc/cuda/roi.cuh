// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/Tensor.h>

#include "launch.cuh"

// What the RoI ops share.
namespace detops::cuda {

// Strides, in elements, of [N, C, H, W] in either layout.
struct Strides {
  int64_t n, c, h, w;
};

__host__ __device__ inline Strides strides_of(bool channels_last, int64_t c, int64_t h, int64_t w) {
  return channels_last ? Strides{c * h * w, 1, w * c, c} : Strides{c * h * w, h * w, w, 1};
}

// An element of [N, C, H, W] by its number in memory.
struct Position {
  int64_t n, c, h, w;
};

__device__ inline Position position_of(int64_t i, bool channels_last, int64_t channels,
                                       int64_t height, int64_t width) {
  Position at;
  if (channels_last) at.c = i % channels, i /= channels;
  at.w = i % width, i /= width;
  at.h = i % height, i /= height;
  if (!channels_last) at.c = i % channels, i /= channels;
  at.n = i;
  return at;
}

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
