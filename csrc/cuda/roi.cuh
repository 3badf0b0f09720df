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

// The backward passes are owner-computes: a block owns a tile of one map and a few channels, and
// adds the RoIs that reach the tile in their order. No atomics, so the same bits every run.
constexpr int kTile = 8;          // pixels a side
constexpr int kChannelLanes = 4;  // threads per pixel
constexpr int kChannelsPerThread = 8;
constexpr int kChannelTile = kChannelLanes * kChannelsPerThread;
static_assert(kTile * kTile * kChannelLanes == kThreads, "one thread per pixel and channel lane");

// One thread of a block and what it owns.
struct TilePlace {
  int64_t image, tile_y, tile_x;
  int px, py;
  int64_t first_channel;  // and every kChannelLanes-th from there on
};

__device__ inline TilePlace tile_place(int64_t tiles_high, int64_t tiles_wide) {
  const int self = static_cast<int>(threadIdx.x);
  return {blockIdx.x / (tiles_high * tiles_wide),
          blockIdx.x / tiles_wide % tiles_high * kTile,
          blockIdx.x % tiles_wide * kTile,
          self % kTile,
          self / kTile % kTile,
          int64_t(blockIdx.y) * kChannelTile + self / (kTile * kTile)};
}

struct Tiles {
  int64_t high, wide;
  dim3 grid;
};

inline Tiles tiles_of(int64_t images, int64_t channels, int64_t height, int64_t width) {
  const int64_t high = (height + kTile - 1) / kTile, wide = (width + kTile - 1) / kTile;
  return {high, wide,
          dim3(static_cast<unsigned>(images * high * wide),
               static_cast<unsigned>((channels + kChannelTile - 1) / kChannelTile))};
}

// Calls visit(k), all threads of the block together, for the RoIs k in their order for which
// reaches(k) holds; each thread asks for some of them.
template <typename Reaches, typename Visit>
__device__ void visit_reaching(int64_t count, const Reaches& reaches, const Visit& visit) {
  __shared__ bool reached[kThreads];
  for (int64_t base = 0; base < count; base += kThreads) {
    __syncthreads();
    const int64_t mine = base + threadIdx.x;
    reached[threadIdx.x] = mine < count && reaches(mine);
    __syncthreads();
    for (int i = 0; i < kThreads; ++i) {
      if (reached[i]) visit(base + i);
    }
  }
}

}  // namespace detops::cuda
