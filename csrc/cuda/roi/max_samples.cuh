// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/max_samples.h"
#include "roi.cuh"

// The backward pass of the ops that take the largest of some bilinear samples: each bin's gradient
// goes to the pixels of one sample. A source says where; it has
//   A: the type of coordinates and sums,
//   Maps maps: of the lists, in which items are a RoI each,
//   int64_t bins: of an item,
//   PlacedRoI placed(item),
//   GivenSample<A> given(item, bin, channel), read from memory that is laid out as the maps are.
namespace detops::cuda {

// Where a bin's sample is, and what gradient it is given; off the map, none.
template <typename A>
struct GivenSample {
  A y, x, grad;
};

// Owner-computes, see roi.cuh.
template <typename T, typename Source>
__global__ void __launch_bounds__(kThreads)
    max_samples_backward_kernel(Source source, RoILists lists, T* maps) {
  using A = typename Source::A;
  constexpr int kBins = kBinsHeld / 2;  // gradients, and as many x
  __shared__ TileBins<A> held;
  static_assert(kTileChannels <= kPixels, "a weight's place is a y's");
  const int self = static_cast<int>(threadIdx.x), row = self / kWarp, lane = self % kWarp;
  const Maps& m = source.maps;
  const TileGrid tiles = tile_grid(m.n, m.h, m.w, kTile);
  const int64_t blocks = tile_blocks(m);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Part part = part_of(block, m.c, kTileChannels);
    const TilePlace tile = tile_place(tiles, part.row, kTile);
    TileSum<A> sum;
    visit_rois<kBins>(lists, tile.image, tile, [&](const int64_t* items, int count) {
      const int64_t all = count * source.bins;
      for (int64_t begin = 0; begin < all; begin += kBins) {
        const int bins = static_cast<int>(math::min(int64_t(kBins), all - begin));
        __syncthreads();
        share_bins(m.channels_last, bins, kTileChannels, [&](int b, int c) {
          const int64_t item = items[(begin + b) / source.bins], bin = (begin + b) % source.bins;
          GivenSample<A> sample{A(math::kOffMap), 0, 0};
          if (c < part.count) sample = source.given(item, bin, part.first + c);
          held.weight[b][c] = sample.y;
          held.grad[b][c] = sample.grad;
          held.grad[kBins + b][c] = sample.x;
        });
        __syncthreads();
        for (int b = 0; b < bins; ++b) {
          for (int j = 0; j < kLaneChannels; ++j) {
            const int c = lane + j * kWarp;
            math::Taps<A> y, x;
            if (!math::bilinear_taps(held.weight[b][c], m.h, y)) continue;
            A share = y.low == tile.y + row ? y.weight_low : A(0);
            if (y.high == tile.y + row) share += y.weight_high;
            if (share == 0) continue;
            if (!math::bilinear_taps(held.grad[kBins + b][c], m.w, x)) continue;
            const A grad = held.grad[b][c];
            for (int i = 0; i < kTile; ++i) {
              A weight = x.low == tile.x + i ? x.weight_low : A(0);
              if (x.high == tile.x + i) weight += x.weight_high;
              // A NaN is its sample's pixels' alone.
              if (weight != 0) sum.at[i][j] = multiply_add(share * weight, grad, sum.at[i][j]);
            }
          }
        }
      }
    });
    sum.write(held, maps + m.strides.at(tile.image, part.first, 0, 0), m.strides, part.count, tile,
              m.h, m.w);
  }
}

template <typename T, typename Source>
void max_samples_backward(const char* op, const Source& source, int64_t items, const Tensor& maps) {
  const auto [lists, memory] = list_rois(op, source, items, source.maps.n, maps.options());
  launch(op, max_samples_backward_kernel<T, Source>, blocks_for(tile_blocks(source.maps), 1),
         source, lists, maps);
}

}  // namespace detops::cuda
