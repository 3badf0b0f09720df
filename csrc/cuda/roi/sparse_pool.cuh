// SPDX-License-Identifier: MIT
#pragma once

#include "roi.cuh"

// Kernels of the ops that pool a bin of a RoI as a weighted sum of a few pixels, anywhere on the
// feature map. A Sampling selects the pixels. It provides
//   A: the type of coordinates and sums,
//   RoIPooling<A> p,
//   Window window(roi, class): no sample of the RoI reads outside it,
//   int64_t most_taps(roi): upper bound on the taps of a bin,
//   A visit_bin(roi, class, ph, pw, reach, visit): calls visit(row, column, weight) for the samples
//     within reach, and possibly for others. The weighted sum is multiplied by the returned factor.
namespace detops::cuda {

constexpr int kTapsHeld = 1024;

// The taps of some bins, computed once for all channels.
template <typename A>
struct BinTaps {
  int64_t pixel[kTapsHeld];
  A weight[kTapsHeld];
  A factor[kThreads];
  int count[kThreads];
};

// One block per RoI and part of the channels of a class. One thread per bin of n channels;
// `vectors`: these are adjacent in memory.
template <int n, bool vectors, typename T, typename Sampling>
__global__ void __launch_bounds__(kThreads)
    sparse_pool_forward_kernel(Sampling sampling, const T* maps, T* output) {
  using A = typename Sampling::A;
  constexpr int kChannels = channels_of_block(n);
  __shared__ BinTaps<A> taps;
  const int self = static_cast<int>(threadIdx.x);
  const RoIPooling<A>& p = sampling.p;
  const Strides &s = p.maps.strides, &os = p.pooled.strides;
  const auto reach = math::sampling_range(p.maps.h, p.maps.w);
  const int64_t all = p.pooled.pixels(), blocks = p.pooled.n * p.parts(kChannels);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Part part = part_of(block, p.class_channels(), kChannels);
    const int64_t k = part.row / p.classes, of_class = part.row % p.classes;
    const int64_t first = of_class * p.class_channels() + part.first;
    const int vectors_of_bin = (part.count + n - 1) / n;
    const int64_t image = p.image(k);
    const int64_t most = image < 0 ? 0 : sampling.most_taps(k);
    const bool holds = most <= kTapsHeld;
    const int share = holds ? math::max(static_cast<int>(most), 1) : 1;  // per bin
    const int bins_held = math::min(kTapsHeld / share, kThreads);
    for (int64_t begin = 0; begin < all; begin += bins_held) {
      const int bins = static_cast<int>(math::min(int64_t(bins_held), all - begin));
      __syncthreads();
      if (self < bins && holds && image >= 0) {
        int end = self * share;
        taps.factor[self] = sampling.visit_bin(k, of_class, (begin + self) / p.pooled.w,
                                               (begin + self) % p.pooled.w, reach,
                                               [&](int64_t row, int64_t col, A weight) {
                                                 taps.pixel[end] = row * p.maps.w + col;
                                                 taps.weight[end++] = weight;
                                               });
        taps.count[self] = end - self * share;
      }
      __syncthreads();
      share_bins(p.pooled.channels_last, bins, vectors_of_bin, [&](int bin, int vector) {
        const int64_t c = first + vector * n;
        const int left = part.count - vector * n;
        const int64_t ph = (begin + bin) / p.pooled.w, pw = (begin + bin) % p.pooled.w;
        Vector<A, n> sum{};
        A factor = 0;
        if (image >= 0) {
          const Channels<n, vectors, const T> map(maps + s.at(image, p.source(c, ph, pw), 0, 0),
                                                  p.groups() * s.c, left);
          const auto add = [&](int64_t pixel, A w) { add_weighted(w, map[pixel * s.w], sum); };
          if (holds) {
            const int from = bin * share;
            for (int t = from; t < from + taps.count[bin]; ++t) add(taps.pixel[t], taps.weight[t]);
            factor = taps.factor[bin];
          } else {
            factor = sampling.visit_bin(
                k, of_class, ph, pw, reach,
                [&](int64_t row, int64_t col, A weight) { add(row * p.maps.w + col, weight); });
          }
        }
        for (A& number : sum.at) number *= factor;
        store_channels<n, vectors>(output + os.at(k, c, ph, pw), os.c, left, sum);
      });
    }
  }
}

// Owner-computes; see roi.cuh. The channels of a block belong to one class and group.
template <typename T, typename Sampling>
__global__ void __launch_bounds__(kThreads)
    sparse_pool_backward_kernel(Sampling sampling, RoILists lists, const T* grad, T* maps,
                                int64_t blocks) {
  using A = typename Sampling::A;
  __shared__ TileBins<A> held;
  const int self = static_cast<int>(threadIdx.x);
  const RoIPooling<A>& p = sampling.p;
  const Strides &s = p.maps.strides, &gs = p.pooled.strides;
  const TileGrid tiles = tile_grid(p.maps.n, p.maps.h, p.maps.w, kTile);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Part part = part_of(block, p.class_channels(), kTileChannels);
    const TileOrigin tile = tile_origin(tiles, part.row % tiles.count(), kTile);
    const int64_t group = part.row / tiles.count();
    const int64_t gw = group % p.groups_wide, gh = group / p.groups_wide % p.groups_high;
    const int64_t of_class = group / p.groups();
    const int64_t first = of_class * p.class_channels() + part.first;

    const auto rows = math::bins_of_cell(gh, p.pooled.h, p.groups_high);
    const auto cols = math::bins_of_cell(gw, p.pooled.w, p.groups_wide);
    const int64_t wide = cols.size(), all = rows.size() * wide;
    // Samples outside the map read the pixels on its border.
    const math::Rectangle reach{double(tile.y - 1), double(tile.y + kTile), double(tile.x - 1),
                                double(tile.x + kTile)};

    TileSum<A> sum;
    const int64_t map = tile.image * p.classes + of_class;
    visit_rois<1>(lists, map, tile, [&](const int64_t* roi, int) {
      const int64_t k = *roi / p.classes;
      for (int64_t begin = 0; begin < all; begin += kBinsHeld) {
        const int bins = static_cast<int>(math::min(int64_t(kBinsHeld), all - begin));
        const auto ph_of = [&](int b) { return rows.begin + (begin + b) / wide; };
        const auto pw_of = [&](int b) { return cols.begin + (begin + b) % wide; };
        __syncthreads();
        for (int j = self; j < bins * kPixels; j += kThreads)
          held.weight[j / kPixels][j % kPixels] = 0;
        __syncthreads();
        if (self < bins) {
          A* weight = held.weight[self];
          unsigned reached = 0;
          const auto add = [&](int64_t row, int64_t col, A w) {
            const int64_t y = row - tile.y, x = col - tile.x;
            if (y < 0 || y >= kTile || x < 0 || x >= kTile) return;
            weight[y * kTile + x] += w;
            reached |= 1u << y;
          };
          const A factor = sampling.visit_bin(k, of_class, ph_of(self), pw_of(self), reach, add);
          for (int pixel = 0; reached != 0 && pixel < kPixels; ++pixel) weight[pixel] *= factor;
          held.rows[self] = reached;
        }
        __syncthreads();
        share_bins(p.pooled.channels_last, bins, kTileChannels, [&](int b, int c) {
          const bool gives = held.rows[b] != 0 && c < part.count;
          held.grad[b][c] = gives ? A(grad[gs.at(k, first + c, ph_of(b), pw_of(b))]) : A(0);
        });
        __syncthreads();
        sum.add(held, bins);
      }
    });
    const int64_t source = (first * p.groups_high + gh) * p.groups_wide + gw;
    sum.write(held, maps + s.at(tile.image, source, 0, 0), {s.n, s.c * p.groups(), s.h, s.w},
              part.count, tile, p.maps.h, p.maps.w);
  }
}

// Pools with a Sampling<A>{pooling, own...}.
template <template <typename> class Sampling, typename... Own>
void sparse_pool_forward(const Tensor& input, const Tensor& boxes, double scale,
                         const Tensor& output, const Own&... own) {
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor rois = wide(boxes, input.scalar_type());
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using T = scalar_t;
    using Chosen = Sampling<accumulate_t<T>>;
    const Chosen sampling{{rois, scale, output, maps}, own...};
    const auto& p = sampling.p;
    const bool neighbours = p.maps.channels_last && p.pooled.channels_last && p.groups() == 1;
    const auto run = [&](auto n, auto vectors) {
      launch(sparse_pool_forward_kernel<n, vectors, T, Chosen>,
             blocks_for(p.pooled.n * p.parts(channels_of_block(n)), 1), sampling, maps, output);
    };
    with_layout<T>(neighbours, p.class_channels(), {maps.const_data_ptr(), output.const_data_ptr()},
                   run);
  });
}

template <template <typename> class Sampling, typename... Own>
void sparse_pool_backward(const Tensor& grad, const Tensor& boxes, double scale, const Tensor& maps,
                          const Own&... own) {
  const Tensor pooled = grad.contiguous(maps.suggest_memory_format());
  const Tensor rois = wide(boxes, maps.scalar_type());
  DETOPS_FLOAT_SWITCH(maps.scalar_type(), [&] {
    using Chosen = Sampling<accumulate_t<scalar_t>>;
    const Chosen sampling{{rois, scale, pooled, maps}, own...};
    const auto& p = sampling.p;
    const auto [lists, memory] = list_rois(PlaceByWindow<Chosen>{sampling}, p.pooled.n * p.classes,
                                           p.maps.n * p.classes, maps.options());
    const int64_t tiles = tile_grid(p.maps.n, p.maps.h, p.maps.w, kTile).count();
    const int64_t blocks = tiles * p.groups() * p.parts(kTileChannels);
    launch(sparse_pool_backward_kernel<scalar_t, Chosen>, blocks_for(blocks, 1), sampling, lists,
           pooled, maps, blocks);
  });
}

}  // namespace detops::cuda
