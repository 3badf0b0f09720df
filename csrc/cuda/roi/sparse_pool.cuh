// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/bilinear.h"
#include "roi.cuh"

// Kernels of the ops that pool a bin of a RoI as a weighted sum of a few pixels, anywhere on the
// map. A sampling says which; it has
//   A: the type that coordinates and sums have,
//   int64_t classes: as many parts of the channels have bins of their own,
//   int64_t image(roi), -1 for a batch index out of range, which pools to zeros,
//   Rectangle bounds(roi, class): no sample of the RoI lies outside,
//   int64_t most_taps(roi): of a bin,
//   A visit_bin(roi, class, ph, pw, reach, visit): calls visit(row, column, weight) for the samples
//     that lie within reach and maybe for others; their sum is multiplied by the result.
namespace detops::cuda {

template <typename T>
struct SparsePoolParams {
  int64_t rois, images, channels, height, width;  // channels of the output, D
  int64_t groups_high, groups_wide;               // the map has as many times D channels
  int64_t pooled_height, pooled_width;
  bool map_channels_last, pooled_channels_last;

  __host__ __device__ int64_t groups() const { return groups_high * groups_wide; }
  __host__ __device__ Strides map_strides() const {
    return strides_of(map_channels_last, channels * groups(), height, width);
  }
  __host__ __device__ Strides pooled_strides() const {
    return strides_of(pooled_channels_last, channels, pooled_height, pooled_width);
  }
  // The channel of the map that bin (ph, pw) of channel c reads.
  __device__ int64_t source(int64_t c, int64_t ph, int64_t pw) const {
    const int64_t gh = ph * groups_high / pooled_height, gw = pw * groups_wide / pooled_width;
    return (c * groups_high + gh) * groups_wide + gw;
  }
};

constexpr int kTapsHeld = 1024;
constexpr int kPoolChannels = 64;  // of a block, or kWarp vectors of them

constexpr int pool_channels(int n) { return n == 1 ? kPoolChannels : n * kWarp; }

// The bins' pixels, made once for all channels.
template <typename A>
struct BinTaps {
  int64_t pixel[kTapsHeld];
  A weight[kTapsHeld];
  A factor[kThreads];
  int count[kThreads];
};

// A block has a RoI and some channels of one class, a thread a bin of n of them; `vectors`: which
// are neighbours in memory.
template <int n, bool vectors, typename T, typename Sampling>
__global__ void __launch_bounds__(kThreads)
    sparse_pool_forward_kernel(SparsePoolParams<T> p, Sampling sampling, const T* maps, T* output) {
  using A = typename Sampling::A;
  constexpr int kChannels = pool_channels(n);
  __shared__ BinTaps<A> taps;
  const int self = static_cast<int>(threadIdx.x);
  const Strides s = p.map_strides(), os = p.pooled_strides();
  const auto reach = math::reach_of_map(p.height, p.width);
  const int64_t per_class = p.channels / sampling.classes;
  const int64_t all = p.pooled_height * p.pooled_width;
  const int64_t blocks = p.rois * sampling.classes * ceil_div(per_class, kChannels);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Part part = part_of(block, per_class, kChannels);
    const int64_t k = part.row / sampling.classes, of_class = part.row % sampling.classes;
    const int64_t first = part.first;
    const int threads = (part.count + n - 1) / n;  // for a bin
    const int64_t image = sampling.image(k);
    const int64_t share = image < 0 ? 1 : math::max(sampling.most_taps(k), int64_t(1));
    const bool holds = share <= kTapsHeld;
    const int bins_held =
        holds ? static_cast<int>(math::min(kTapsHeld / share, int64_t(kThreads))) : kThreads;
    for (int64_t begin = 0; begin < all; begin += bins_held) {
      const int bins = static_cast<int>(math::min(int64_t(bins_held), all - begin));
      __syncthreads();
      if (self < bins && holds && image >= 0) {
        int end = self * static_cast<int>(share);
        taps.factor[self] = sampling.visit_bin(k, of_class, (begin + self) / p.pooled_width,
                                               (begin + self) % p.pooled_width, reach,
                                               [&](int64_t row, int64_t col, A weight) {
                                                 taps.pixel[end] = row * p.width + col;
                                                 taps.weight[end++] = weight;
                                               });
        taps.count[self] = end - self * static_cast<int>(share);
      }
      __syncthreads();
      for (int i = self; i < bins * threads; i += kThreads) {
        const int bin = p.pooled_channels_last ? i / threads : i % bins;
        const int own = (p.pooled_channels_last ? i % threads : i / bins) * n;
        const int left = part.count - own;
        const int64_t c = of_class * per_class + first + own;
        const int64_t ph = (begin + bin) / p.pooled_width, pw = (begin + bin) % p.pooled_width;
        A sum[n] = {}, factor = 0;
        if (image >= 0) {
          const Channels<n, vectors, const T> map(maps + image * s.n + p.source(c, ph, pw) * s.c,
                                                  p.groups() * s.c, left);
          const auto add = [&](int64_t pixel, A weight) {
            const Vector<T, n> values = map[pixel * s.w];
            for (int j = 0; j < n; ++j) {
              sum[j] = multiply_add(weight, static_cast<A>(values.at[j]), sum[j]);
            }
          };
          if (holds) {
            const int from = bin * static_cast<int>(share);
            for (int t = from; t < from + taps.count[bin]; ++t) add(taps.pixel[t], taps.weight[t]);
            factor = taps.factor[bin];
          } else {
            factor = sampling.visit_bin(
                k, of_class, ph, pw, reach,
                [&](int64_t row, int64_t col, A weight) { add(row * p.width + col, weight); });
          }
        }
        Vector<T, n> pooled;
        for (int j = 0; j < n; ++j) pooled.at[j] = static_cast<T>(sum[j] * factor);
        store_channels<n, vectors>(output + k * os.n + c * os.c + ph * os.h + pw * os.w, os.c, left,
                                   pooled);
      }
    }
  }
}

// Maps of the lists are (image, class), RoIs (RoI, class).
template <typename T, typename Sampling>
struct PlaceSparseRoI {
  SparsePoolParams<T> p;
  Sampling sampling;

  __device__ int64_t operator()(int64_t i, Window& window) const {
    const int64_t k = i / sampling.classes, of_class = i % sampling.classes;
    window = {};
    const int64_t image = sampling.image(k);
    if (image < 0) return -1;
    const math::Rectangle bounds = sampling.bounds(k, of_class);
    reach_of_samples(bounds.top, bounds.bottom, p.height, window.top, window.bottom);
    reach_of_samples(bounds.left, bounds.right, p.width, window.left, window.right);
    return image * sampling.classes + of_class;
  }
};

// Owner-computes, see roi.cuh; the channels of a block are of one class and group.
template <typename T, typename Sampling>
__global__ void __launch_bounds__(kThreads)
    sparse_pool_backward_kernel(SparsePoolParams<T> p, Sampling sampling, RoILists lists,
                                const T* grad, T* maps, int64_t blocks) {
  using A = typename Sampling::A;
  __shared__ TileBins<A> held;
  const int self = static_cast<int>(threadIdx.x);
  const int64_t per_class = p.channels / sampling.classes;
  const TileGrid tiles = tile_grid(p.images, p.height, p.width, kTile);
  const Strides s = p.map_strides(), gs = p.pooled_strides();
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Part part = part_of(block, per_class, kTileChannels);
    const TilePlace at = tile_place(tiles, part.row % tiles.count(), kTile);
    const int64_t image = at.image, tile_y = at.y, tile_x = at.x;
    const int64_t cell = part.row / tiles.count();
    const int64_t gw = cell % p.groups_wide, gh = cell / p.groups_wide % p.groups_high;
    const int64_t of_class = cell / p.groups();
    const int64_t first = of_class * per_class + part.first;

    // The bins of the group; those of cell i begin at ceil(i * pooled / groups).
    const auto begin_of = [](int64_t cell, int64_t pooled, int64_t cells) {
      return ceil_div(cell * pooled, cells);
    };
    const int64_t top = begin_of(gh, p.pooled_height, p.groups_high);
    const int64_t left = begin_of(gw, p.pooled_width, p.groups_wide);
    const int64_t high = begin_of(gh + 1, p.pooled_height, p.groups_high) - top;
    const int64_t wide = begin_of(gw + 1, p.pooled_width, p.groups_wide) - left;
    // What samples outside the map give belongs to pixels on its border.
    const math::Rectangle reach{double(tile_y - 1), double(tile_y + kTile), double(tile_x - 1),
                                double(tile_x + kTile)};

    TileSum<A> sum;
    const int64_t map = image * sampling.classes + of_class;
    visit_rois(lists, map, tile_y, tile_x, kTile, [&](int64_t i) {
      const int64_t k = i / sampling.classes;
      for (int64_t begin = 0; begin < high * wide; begin += kBinsHeld) {
        const int bins = static_cast<int>(math::min(int64_t(kBinsHeld), high * wide - begin));
        const auto ph_of = [&](int b) { return top + (begin + b) / wide; };
        const auto pw_of = [&](int b) { return left + (begin + b) % wide; };
        __syncthreads();
        for (int j = self; j < bins * kPixels; j += kThreads)
          held.weight[j / kPixels][j % kPixels] = 0;
        __syncthreads();
        if (self < bins) {
          A* weight = held.weight[self];
          unsigned rows = 0;
          const A factor = sampling.visit_bin(k, of_class, ph_of(self), pw_of(self), reach,
                                              [&](int64_t row, int64_t col, A w) {
                                                const int64_t y = row - tile_y, x = col - tile_x;
                                                if (y < 0 || y >= kTile || x < 0 || x >= kTile)
                                                  return;
                                                weight[y * kTile + x] += w;
                                                rows |= 1u << y;
                                              });
          for (int pixel = 0; rows != 0 && pixel < kPixels; ++pixel) weight[pixel] *= factor;
          held.rows[self] = rows;
        }
        __syncthreads();
        const T* pooled = grad + k * gs.n + first * gs.c;
        hold(held.grad, p.pooled_channels_last, part.count, bins, [&](int b, int c) {
          if (held.rows[b] == 0) return A(0);
          return static_cast<A>(pooled[ph_of(b) * gs.h + pw_of(b) * gs.w + c * gs.c]);
        });
        __syncthreads();
        sum.add(held, bins);
      }
    });
    const int64_t source = (first * p.groups_high + gh) * p.groups_wide + gw;
    sum.write(held, maps + image * s.n + source * s.c, {s.n, s.c * p.groups(), s.h, s.w},
              part.count, tile_y, tile_x, p.height, p.width);
  }
}

template <typename T, typename Sampling>
void sparse_pool_forward(const char* op, const SparsePoolParams<T>& p, const Sampling& sampling,
                         const Tensor& maps, Tensor& output) {
  const int64_t per_class = p.channels / sampling.classes;
  const bool neighbours = p.map_channels_last && p.pooled_channels_last && p.groups() == 1;
  with_layout<T>(neighbours, per_class, {maps.const_data_ptr(), output.const_data_ptr()},
                 [&](auto n, auto vectors) {
                   const int64_t parts = ceil_div(per_class, pool_channels(n));
                   launch(op, sparse_pool_forward_kernel<n, vectors, T, Sampling>,
                          blocks_for(p.rois * sampling.classes * parts, 1), p, sampling,
                          maps.const_data_ptr<T>(), output.mutable_data_ptr<T>());
                 });
}

template <typename T, typename Sampling>
void sparse_pool_backward(const char* op, const SparsePoolParams<T>& p, const Sampling& sampling,
                          const Tensor& grad, Tensor& maps) {
  const auto [lists, memory] =
      list_rois(op, PlaceSparseRoI<T, Sampling>{p, sampling}, p.rois * sampling.classes,
                p.images * sampling.classes, maps.options());
  const int64_t per_class = p.channels / sampling.classes;
  const int64_t blocks = sampling.classes * p.groups() *
                         tile_grid(p.images, p.height, p.width, kTile).count() *
                         ceil_div(per_class, kTileChannels);
  launch(op, sparse_pool_backward_kernel<T, Sampling>, blocks_for(blocks, 1), p, sampling, lists,
         grad.const_data_ptr<T>(), maps.mutable_data_ptr<T>(), blocks);
}

// `pooled` and `maps` are contiguous in their layout.
template <typename T>
SparsePoolParams<T> sparse_pool_params(const Tensor& pooled, const Tensor& maps,
                                       int64_t groups_high, int64_t groups_wide) {
  return {pooled.size(0),
          maps.size(0),
          pooled.size(1),
          maps.size(2),
          maps.size(3),
          groups_high,
          groups_wide,
          pooled.size(2),
          pooled.size(3),
          is_channels_last(maps),
          is_channels_last(pooled)};
}

}  // namespace detops::cuda
