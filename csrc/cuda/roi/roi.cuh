// SPDX-License-Identifier: MIT
#pragma once

#include <tuple>

#include "../../math/host_device.h"
#include "../../ops.h"
#include "../common/ballot.cuh"
#include "../common/geometry.h"
#include "../common/launch.cuh"
#include "../common/vector.cuh"

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

// The pixels of a map that a RoI may reach, generously.
struct Window {
  int64_t top = 0, bottom = 0, left = 0, right = 0;  // [top, bottom) x [left, right)

  __device__ bool meets(int64_t y, int64_t x, int64_t side) const {
    return top < y + side && bottom > y && left < x + side && right > x;
  }
};

// One side of a Window: what samples in [low, high] may read of `size` pixels.
template <typename A>
__device__ void reach_of_samples(A low, A high, int64_t size, int64_t& begin, int64_t& end) {
  begin = end = 0;
  if (!(low <= high)) return;
  begin = static_cast<int64_t>(math::min(math::max(double(low) - 2, 0.0), double(size)));
  end = static_cast<int64_t>(math::min(math::max(double(high) + 3, 0.0), double(size)));
}

// The RoIs of each map, in their order.
struct RoILists {
  Window* windows;  // [K]
  int64_t* map;     // [K], -1 for a RoI that reads none
  int64_t* order;   // [K], map by map
  int64_t* begin;   // [maps + 1], of each map in `order`
};

template <typename Place>
__global__ void place_rois_kernel(Place place, int64_t count, RoILists lists) {
  DETOPS_FOR_EACH(k, count) { lists.map[k] = place(k, lists.windows[k]); }
}

// A block per map: it counts the RoIs of the maps before, then lists its own.
static __global__ void list_rois_kernel(RoILists lists, int64_t count, int64_t maps) {
  __shared__ Votes<> votes;
  const int self = static_cast<int>(threadIdx.x);
  for (int64_t own = blockIdx.x; own < maps; own += gridDim.x) {
    int64_t at = 0;
    for (int64_t first = 0; first < count; first += kThreads) {
      const int64_t k = first + self, map = k < count ? lists.map[k] : -1;
      __syncthreads();
      votes.cast(map >= 0 && map < own);
      at += votes.total();
    }
    if (self == 0) lists.begin[own] = at;
    for (int64_t first = 0; first < count; first += kThreads) {
      const int64_t k = first + self;
      const bool mine = k < count && lists.map[k] == own;
      __syncthreads();
      votes.cast(mine);
      if (mine) lists.order[at + votes.before(self)] = k;
      at += votes.total();
    }
    if (self == 0 && own + 1 == maps) lists.begin[maps] = at;
  }
}

// place(k, window) sets RoI k's window, empty before, and gives its map. The lists live as long as
// the tensor.
template <typename Place>
std::tuple<RoILists, Tensor> list_rois(const char* op, const Place& place, int64_t count,
                                       int64_t maps, const Options& options) {
  constexpr int64_t kWindow = sizeof(Window) / sizeof(int64_t);
  const Tensor memory = empty({(kWindow + 2) * count + maps + 1}, options.dtype(kLong));
  int64_t* numbers = memory.mutable_data_ptr<int64_t>();
  int64_t* map = numbers + kWindow * count;
  const RoILists lists{reinterpret_cast<Window*>(numbers), map, map + count, map + 2 * count};
  launch(op, place_rois_kernel<Place>, blocks_for(count), place, count, lists);
  launch(op, list_rois_kernel, blocks_for(maps, 1), lists, count, maps);
  return {lists, memory};
}

// Calls visit(rois, n), all threads of the block together, for the RoIs of the map that may reach
// the square of `side` pixels at (y, x), in their order; n of them at a time, `size` at most.
template <int size, typename Visit>
__device__ void visit_groups(const RoILists& lists, int64_t map, int64_t y, int64_t x, int64_t side,
                             const Visit& visit) {
  __shared__ Votes<> votes;
  __shared__ int64_t reaching[kThreads];
  const int64_t end = lists.begin[map + 1];
  for (int64_t first = lists.begin[map]; first < end; first += kThreads) {
    const int64_t at = first + threadIdx.x, k = at < end ? lists.order[at] : -1;
    const bool reaches = k >= 0 && lists.windows[k].meets(y, x, side);
    __syncthreads();
    votes.cast(reaches);
    if (reaches) reaching[votes.before(static_cast<int>(threadIdx.x))] = k;
    const int n = votes.total();
    __syncthreads();
    for (int i = 0; i < n; i += size) visit(reaching + i, math::min(size, n - i));
  }
}

// One at a time.
template <typename Visit>
__device__ void visit_rois(const RoILists& lists, int64_t map, int64_t y, int64_t x, int64_t side,
                           const Visit& visit) {
  visit_groups<1>(lists, map, y, x, side, [&](const int64_t* roi, int) { visit(*roi); });
}

// The backward passes of RoI ops are owner-computes: a block owns a tile of a map and some of its
// channels, and adds what the RoIs that reach the tile give it, in their order. Every element is
// written once, there are no atomics, and so the same bits every run.
constexpr int kTile = 8;  // pixels a side; a warp has a row of them
constexpr int kPixels = kTile * kTile;
constexpr int kLaneChannels = 2;  // of a thread, a warp apart
constexpr int kTileChannels = kLaneChannels * kWarp;
constexpr int kBinsHeld = 32;
static_assert(kThreads == kTile * kWarp, "a warp has a row of the tile");

// What a block holds of a few bins: how much of them goes to each pixel of the tile, and their
// gradients.
template <typename A>
struct TileBins {
  A weight[kBinsHeld][kPixels];
  unsigned rows[kBinsHeld];              // a bit for each row with weights
  A grad[kBinsHeld][kTileChannels + 1];  // padded: neither bins nor channels share a bank
};

template <typename A>
struct TileSum {
  A at[kTile][kLaneChannels] = {};

  // From `bins` bins, behind a barrier.
  __device__ void add(const TileBins<A>& held, int bins) {
    const int row = static_cast<int>(threadIdx.x) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int b = 0; b < bins; ++b) {
      if ((held.rows[b] >> row & 1) == 0) continue;
      A grad[kLaneChannels];
      for (int j = 0; j < kLaneChannels; ++j) grad[j] = held.grad[b][lane + j * kWarp];
      for (int x = 0; x < kTile; ++x) {
        const A weight = held.weight[b][row * kTile + x];
        if (weight == 0) continue;  // a NaN is its bin's pixels' alone
        for (int j = 0; j < kLaneChannels; ++j) at[x][j] = multiply_add(weight, grad[j], at[x][j]);
      }
    }
  }

  // Writes the tile at (tile_y, tile_x); `map` is that of its first channel, of which there are
  // `channels` in the tile.
  template <typename T>
  __device__ void write(TileBins<A>& held, T* map, const Strides& s, int channels, int64_t tile_y,
                        int64_t tile_x, int64_t height, int64_t width) const {
    const int self = static_cast<int>(threadIdx.x), row = self / kWarp, lane = self % kWarp;
    if (s.c == 1) {
      for (int x = 0; x < kTile; ++x) {
        if (tile_y + row >= height || tile_x + x >= width) continue;
        T* to = map + (tile_y + row) * s.h + (tile_x + x) * s.w;
        for (int j = 0; j < kLaneChannels; ++j) {
          const int c = lane + j * kWarp;
          if (c < channels) to[c] = static_cast<T>(at[x][j]);
        }
      }
      return;
    }
    // Turned around in shared memory, some rows at a time, so that neighbours are written together.
    constexpr int kRows = kBinsHeld / kTile;
    for (int first = 0; first < kTile; first += kRows) {
      __syncthreads();
      if (row >= first && row < first + kRows) {
        for (int x = 0; x < kTile; ++x) {
          for (int j = 0; j < kLaneChannels; ++j) {
            held.grad[(row - first) * kTile + x][lane + j * kWarp] = at[x][j];
          }
        }
      }
      __syncthreads();
      for (int i = self; i < channels * kBinsHeld; i += kThreads) {
        const int pixel = i % kBinsHeld, c = i / kBinsHeld;
        const int64_t y = tile_y + first + pixel / kTile, x = tile_x + pixel % kTile;
        if (y < height && x < width) {
          map[c * s.c + y * s.h + x * s.w] = static_cast<T>(held.grad[pixel][c]);
        }
      }
    }
  }
};

// Fills rows of bins, kTileChannels long, by all threads: to[b][c] = value(b, c), 0 from `channels`
// on. Neighbouring threads take neighbouring channels where those lie side by side in memory, else
// neighbouring bins.
template <typename V, typename Value>
__device__ void hold(V (&to)[kBinsHeld][kTileChannels + 1], bool channels_last, int channels,
                     int bins, const Value& value) {
  for (int i = static_cast<int>(threadIdx.x); i < bins * kTileChannels; i += kThreads) {
    const int b = channels_last ? i / kTileChannels : i % bins;
    const int c = channels_last ? i % kTileChannels : i / bins;
    to[b][c] = c < channels ? value(b, c) : V(0);
  }
}

}  // namespace detops::cuda
