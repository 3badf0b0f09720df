// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/max_samples.h"
#include "roi.cuh"

// The backward pass of the ops that take the largest of some bilinear samples: each bin's gradient
// goes to the pixels of one sample. A source says where; it has
//   A: the type of coordinates and sums,
//   int64_t bins: of an item, which is a RoI on one list's map,
//   int64_t maps, channels, height, width: of the lists' maps,
//   int64_t offset(map), Strides strides: of their elements,
//   bool channels_last: whether the gradients of one bin are neighbours,
//   A y, x(item, bin, channel): where the sample is; off the map, it gets nothing,
//   A grad(item, bin, channel).
namespace detops::cuda {

// Owner-computes, see roi.cuh.
template <typename T, typename Source>
__global__ void __launch_bounds__(kThreads)
    max_samples_backward_kernel(Source source, RoILists lists, T* maps, int64_t blocks) {
  using A = typename Source::A;
  constexpr int kBins = kBinsHeld / 2;  // gradients, and as many columns
  __shared__ TileBins<A> held;
  static_assert(kTileChannels <= kPixels, "a weight's place is a row's");
  const int self = static_cast<int>(threadIdx.x), row = self / kWarp, lane = self % kWarp;
  const TileGrid tiles = tile_grid(source.maps, source.height, source.width, kTile);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Part part = part_of(block, source.channels, kTileChannels);
    const TilePlace at = tile_place(tiles, part.row, kTile);
    const int64_t tile_y = at.y, tile_x = at.x;
    TileSum<A> sum;
    visit_groups<kBins>(
        lists, at.image, tile_y, tile_x, kTile, [&](const int64_t* items, int count) {
          const int64_t all = count * source.bins;
          for (int64_t begin = 0; begin < all; begin += kBins) {
            const int bins = static_cast<int>(math::min(int64_t(kBins), all - begin));
            const auto item = [&](int b) { return items[(begin + b) / source.bins]; };
            const auto bin = [&](int b) { return (begin + b) % source.bins; };
            __syncthreads();
            hold(held.grad, source.channels_last, part.count, 2 * bins, [&](int b, int c) {
              const int64_t channel = part.first + c;
              if (b < bins) return source.grad(item(b), bin(b), channel);
              return source.x(item(b - bins), bin(b - bins), channel);
            });
            for (int i = self; i < bins * kTileChannels; i += kThreads) {
              const int b = source.channels_last ? i / kTileChannels : i % bins;
              const int c = source.channels_last ? i % kTileChannels : i / bins;
              held.weight[b][c] =
                  c < part.count ? source.y(item(b), bin(b), part.first + c) : A(math::kOffMap);
            }
            __syncthreads();
            for (int b = 0; b < bins; ++b) {
              for (int j = 0; j < kLaneChannels; ++j) {
                const int c = lane + j * kWarp;
                math::Taps<A> y, x;
                if (!math::bilinear_taps(held.weight[b][c], source.height, y)) continue;
                A share = y.low == tile_y + row ? y.weight_low : A(0);
                if (y.high == tile_y + row) share += y.weight_high;
                if (share == 0) continue;
                if (!math::bilinear_taps(held.grad[bins + b][c], source.width, x)) continue;
                const A grad = held.grad[b][c];
                for (int i = 0; i < kTile; ++i) {
                  A weight = x.low == tile_x + i ? x.weight_low : A(0);
                  if (x.high == tile_x + i) weight += x.weight_high;
                  // A NaN is its sample's pixels' alone.
                  if (weight != 0) sum.at[i][j] = multiply_add(share * weight, grad, sum.at[i][j]);
                }
              }
            }
          }
        });
    sum.write(held, maps + source.offset(at.image) + part.first * source.strides.c, source.strides,
              part.count, tile_y, tile_x, source.height, source.width);
  }
}

// place(i, window) gives the map of item i, of which there are `items`, and the pixels that it may
// reach.
template <typename T, typename Source, typename Place>
void max_samples_backward(const char* op, const Source& source, const Place& place, int64_t items,
                          const Tensor& maps) {
  const auto [lists, memory] = list_rois(op, place, items, source.maps, maps.options());
  const int64_t blocks = tile_grid(source.maps, source.height, source.width, kTile).count() *
                         ceil_div(source.channels, kTileChannels);
  launch(op, max_samples_backward_kernel<T, Source>, blocks_for(blocks, 1), source, lists,
         maps.mutable_data_ptr<T>(), blocks);
}

// The pixels that samples of a line may read.
template <typename A>
__device__ void reach_of_line(const math::SampleLine<A>& line, int64_t size, int64_t& begin,
                              int64_t& end) {
  const A last = line.count > 0 ? line.at(line.count - 1) : line.origin;
  reach_of_samples(math::min(line.origin, last), math::max(line.origin, last), size, begin, end);
}

}  // namespace detops::cuda
