// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/OpMathType.h>

#include "../math/bilinear.h"
#include "roi.cuh"

// Kernels of the ops that pool a bin of a RoI as a mean of bilinear samples, each sample anywhere
// on the map. A sampling says where; it has
//   A: the type that coordinates and sums have,
//   int64_t classes: as many parts of the channels have bins of their own,
//   int64_t image(roi), -1 for a batch index out of range, which pools to zeros,
//   bool meets(roi, class, reach): false only if no sample of the RoI lies within,
//   A visit_bin(roi, class, ph, pw, reach, visit): calls visit(row taps, column taps) for the
//     samples that lie within reach and maybe for others; their sum is multiplied by the result.
namespace detops::cuda {

template <typename T>
struct SparsePoolParams {
  int64_t rois, images, channels, height, width;  // channels of the output, D
  int64_t groups;                                 // G; the map has D * G^2 channels
  int64_t pooled_height, pooled_width;
  bool map_channels_last, pooled_channels_last;

  __host__ __device__ Strides map_strides() const {
    return strides_of(map_channels_last, channels * groups * groups, height, width);
  }
  __host__ __device__ Strides pooled_strides() const {
    return strides_of(pooled_channels_last, channels, pooled_height, pooled_width);
  }
  // The channel of the map that bin (ph, pw) of channel c reads.
  __device__ int64_t source(int64_t c, int64_t ph, int64_t pw) const {
    const int64_t gh = ph * groups / pooled_height, gw = pw * groups / pooled_width;
    return (c * groups + gh) * groups + gw;
  }
};

template <typename T, typename Sampling>
__global__ void sparse_pool_forward_kernel(SparsePoolParams<T> p, Sampling sampling, const T* maps,
                                           T* output) {
  using A = typename Sampling::A;
  const Strides s = p.map_strides();
  const auto reach = math::reach_of_map(p.height, p.width);
  DETOPS_FOR_EACH(i, p.rois * p.channels * p.pooled_height * p.pooled_width) {
    const Position at =
        position_of(i, p.pooled_channels_last, p.channels, p.pooled_height, p.pooled_width);
    const int64_t image = sampling.image(at.n);
    A sum = 0, factor = 0;
    if (image >= 0) {
      const T* map = maps + image * s.n + p.source(at.c, at.h, at.w) * s.c;
      const int64_t of_class = at.c / (p.channels / sampling.classes);
      factor = sampling.visit_bin(
          at.n, of_class, at.h, at.w, reach, [&](const math::Taps<A>& y, const math::Taps<A>& x) {
            math::visit_corners(y, x, [&](int64_t row, int64_t col, A weight) {
              sum += weight * static_cast<A>(map[row * s.h + col * s.w]);
            });
          });
    }
    output[i] = static_cast<T>(sum * factor);
  }
}

// Owner-computes, see roi.cuh; the channels of a block are of one class and group.
constexpr int kPixels = kTile * kTile;
constexpr int kSparseBins = 64;  // whose weights are held at a time

template <typename T, typename Sampling>
__global__ void __launch_bounds__(kThreads)
    sparse_pool_backward_kernel(SparsePoolParams<T> p, Sampling sampling, const T* grad, T* maps,
                                int64_t tiles_high, int64_t tiles_wide) {
  using A = typename Sampling::A;
  __shared__ A weights[kSparseBins][kPixels + 1];  // padded: no two bins in one bank
  const int self = static_cast<int>(threadIdx.x);
  const int pixel = self % kPixels, lane = self / kPixels;
  const int64_t per_class = p.channels / sampling.classes;
  const int64_t blocks = (per_class + kChannelTile - 1) / kChannelTile;
  int64_t rest = blockIdx.x;
  const int64_t tile_x = rest % tiles_wide * kTile;
  rest /= tiles_wide;
  const int64_t tile_y = rest % tiles_high * kTile;
  rest /= tiles_high;
  const int64_t image = rest % p.images;
  rest /= p.images;
  const int64_t first_channel = rest % blocks * kChannelTile + lane;  // of the class
  rest /= blocks;
  const int64_t gw = rest % p.groups, gh = rest / p.groups % p.groups;
  const int64_t of_class = rest / (p.groups * p.groups);
  const Strides gs = p.pooled_strides();

  // The bins of the group; those of cell i begin at ceil(i * pooled / groups).
  const int64_t top = (gh * p.pooled_height + p.groups - 1) / p.groups;
  const int64_t left = (gw * p.pooled_width + p.groups - 1) / p.groups;
  const int64_t high = ((gh + 1) * p.pooled_height + p.groups - 1) / p.groups - top;
  const int64_t wide = ((gw + 1) * p.pooled_width + p.groups - 1) / p.groups - left;
  // What samples outside the map give belongs to pixels on its border.
  const math::Rectangle reach{double(tile_y - 1), double(tile_y + kTile), double(tile_x - 1),
                              double(tile_x + kTile)};

  A sum[kChannelsPerThread] = {};
  const auto reached = [&](int64_t k) {
    return sampling.image(k) == image && sampling.meets(k, of_class, reach);
  };
  visit_reaching(p.rois, reached, [&](int64_t k) {
    for (int64_t first = 0; first < high * wide; first += kSparseBins) {
      __syncthreads();
      if (self < kSparseBins) {
        A* weight = weights[self];
        for (int i = 0; i < kPixels; ++i) weight[i] = 0;
        const int64_t bin = first + self;
        if (bin < high * wide) {
          const A factor =
              sampling.visit_bin(k, of_class, top + bin / wide, left + bin % wide, reach,
                                 [&](const math::Taps<A>& y, const math::Taps<A>& x) {
                                   math::visit_corners(y, x, [&](int64_t row, int64_t col, A w) {
                                     const int64_t ty = row - tile_y, tx = col - tile_x;
                                     if (ty >= 0 && ty < kTile && tx >= 0 && tx < kTile) {
                                       weight[ty * kTile + tx] += w;
                                     }
                                   });
                                 });
          for (int i = 0; i < kPixels; ++i) {
            if (weight[i] != 0) weight[i] *= factor;
          }
        }
      }
      __syncthreads();
      const int64_t bins = min(int64_t(kSparseBins), high * wide - first);
      for (int64_t b = 0; b < bins; ++b) {
        const A weight = weights[b][pixel];
        if (weight == 0) continue;
        const int64_t ph = top + (first + b) / wide, pw = left + (first + b) % wide;
        const T* g = grad + k * gs.n + of_class * per_class * gs.c + ph * gs.h + pw * gs.w;
        for (int j = 0; j < kChannelsPerThread; ++j) {
          const int64_t c = first_channel + j * kChannelLanes;
          if (c < per_class) sum[j] += weight * static_cast<A>(g[c * gs.c]);
        }
      }
    }
  });

  const int64_t y = tile_y + pixel / kTile, x = tile_x + pixel % kTile;
  if (y >= p.height || x >= p.width) return;
  const Strides s = p.map_strides();
  T* out = maps + image * s.n + y * s.h + x * s.w;
  for (int j = 0; j < kChannelsPerThread; ++j) {
    const int64_t c = first_channel + j * kChannelLanes;
    if (c >= per_class) continue;
    const int64_t source = ((of_class * per_class + c) * p.groups + gh) * p.groups + gw;
    out[source * s.c] = static_cast<T>(sum[j]);
  }
}

template <typename T, typename Sampling>
void sparse_pool_forward(const char* op, const SparsePoolParams<T>& p, const Sampling& sampling,
                         const Tensor& maps, Tensor& output) {
  launch(op, sparse_pool_forward_kernel<T, Sampling>, blocks_for(output.numel()), p, sampling,
         maps.const_data_ptr<T>(), output.mutable_data_ptr<T>());
}

template <typename T, typename Sampling>
void sparse_pool_backward(const char* op, const SparsePoolParams<T>& p, const Sampling& sampling,
                          const Tensor& grad, Tensor& maps) {
  const int64_t high = (p.height + kTile - 1) / kTile;
  const int64_t wide = (p.width + kTile - 1) / kTile;
  const int64_t per_class = p.channels / sampling.classes;
  const int64_t blocks = (per_class + kChannelTile - 1) / kChannelTile;
  const int64_t grid = sampling.classes * p.groups * p.groups * blocks * p.images * high * wide;
  TORCH_CHECK(grid <= INT32_MAX, "detops: a gradient of ", maps.sizes(), " is too large");
  launch(op, sparse_pool_backward_kernel<T, Sampling>, static_cast<unsigned>(grid), p, sampling,
         grad.const_data_ptr<T>(), maps.mutable_data_ptr<T>(), high, wide);
}

// `pooled` and `maps` are contiguous in their layout.
template <typename T>
SparsePoolParams<T> sparse_pool_params(const Tensor& pooled, const Tensor& maps, int64_t groups) {
  return {pooled.size(0),         maps.size(0),
          pooled.size(1),         maps.size(2),
          maps.size(3),           groups,
          pooled.size(2),         pooled.size(3),
          is_channels_last(maps), is_channels_last(pooled)};
}

}  // namespace detops::cuda
