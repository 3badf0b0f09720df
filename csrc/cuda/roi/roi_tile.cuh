// SPDX-License-Identifier: MIT
#pragma once

#include "../common/vector.cuh"
#include "roi.cuh"

// The backward passes of RoI ops are owner-computes: a block owns a tile of a map and some of its
// channels, and adds what the RoIs that reach the tile give it, in their order. Every element is
// written once, there are no atomics, and so the same bits every run.
namespace detops::cuda {

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
