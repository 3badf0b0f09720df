// SPDX-License-Identifier: MIT
#include <limits>

#include "roi.cuh"

namespace detops::cuda {
namespace {

template <typename A>
struct PixelPooling : BoxPooling<PixelRule<1>, A> {
  __device__ PlacedRoI placed(int64_t k) const {
    const FeatureMaps &maps = this->p.maps, &pooled = this->p.pooled;
    const auto rows = this->rows(k), cols = this->cols(k);
    return {
        this->p.image(k),
        {math::bin_range(rows, 0, maps.h).begin, math::bin_range(rows, pooled.h - 1, maps.h).end,
         math::bin_range(cols, 0, maps.w).begin, math::bin_range(cols, pooled.w - 1, maps.w).end}};
  }
};

// One thread per bin of n channels. Adjacent threads handle adjacent channels in channels_last,
// else adjacent bins.
template <int n, bool channels_last, typename T, typename A = accumulate_t<T>>
__global__ void roi_pool_forward_kernel(PixelPooling<A> pooling, const T* input, T* output,
                                        int32_t* argmax) {
  const RoIPooling<A>& p = pooling.p;
  const FeatureMaps &in = p.maps, &out = p.pooled;
  const Strides s = strides_of(channels_last, in.c, in.h, in.w);
  const Strides os = strides_of(channels_last, out.c, out.h, out.w);
  const int64_t vectors = ceil_div(out.c, n);
  DETOPS_FOR_EACH(i, out.n * vectors * out.pixels()) {
    const Position at = position_of(i, channels_last, vectors, out.h, out.w);
    const int64_t c = at.c * n, image = p.image(at.n);
    const int left = static_cast<int>(math::min(int64_t(n), out.c - c));
    math::PixelRange rows{0, 0}, cols{0, 0};
    if (image >= 0) {
      rows = math::bin_range(pooling.rows(at.n), at.h, in.h);
      cols = math::bin_range(pooling.cols(at.n), at.w, in.w);
    }
    const bool empty = rows.begin == rows.end || cols.begin == cols.end;
    Vector<T, n> pooled{};
    Vector<int32_t, n> index;
    for (int j = 0; j < n; ++j) {
      index.at[j] = empty ? -1 : static_cast<int32_t>(rows.begin * in.w + cols.begin);
    }
    if (!empty) {
      constexpr A kNothing = -std::numeric_limits<A>::infinity();
      A best[n];
      for (int j = 0; j < n; ++j) best[j] = kNothing;
      const Channels<n, channels_last, const T> map(input + s.at(image, c, 0, 0), s.c, left);
      for (int64_t y = rows.begin; y < rows.end; ++y) {
        const auto row = map + y * s.h;
        for (int64_t x = cols.begin; x < cols.end; ++x) {
          const Vector<T, n> values = row[x * s.w];
          for (int j = 0; j < n; ++j) {
            const A value = static_cast<A>(values.at[j]);
            if (!math::exceeds(value, best[j])) continue;
            best[j] = value;
            index.at[j] = static_cast<int32_t>(y * in.w + x);
          }
        }
      }
      pooled = map[rows.begin * s.h + cols.begin * s.w];
      for (int j = 0; j < n; ++j) {
        if (best[j] > kNothing) pooled.at[j] = static_cast<T>(best[j]);
      }
    }
    const int64_t to = os.at(at.n, c, at.h, at.w);
    store_channels<n, channels_last>(output + to, os.c, left, pooled);
    // argmax is newly allocated, so it is aligned even for vectors of 32 bytes.
    store_channels<n, channels_last>(argmax + to, os.c, left, index);
  }
}

// Returns the range of bins that have pixels in [tile, tile + kTile).
template <typename A>
__device__ math::PixelRange bins_reaching(const math::PoolAxis<A>& axis, int64_t pooled,
                                          int64_t size, int64_t tile) {
  math::PixelRange bins{0, pooled};
  while (bins.begin < pooled && math::bin_range(axis, bins.begin, size).end <= tile) ++bins.begin;
  while (bins.end > bins.begin && math::bin_range(axis, bins.end - 1, size).begin >= tile + kTile) {
    --bins.end;
  }
  return bins;
}

// Owner-computes; see roi.cuh.
template <typename T, typename A = accumulate_t<T>>
__global__ void __launch_bounds__(kThreads)
    roi_pool_backward_kernel(PixelPooling<A> pooling, RoILists lists, const T* grad,
                             const int32_t* argmax, T* output) {
  __shared__ TileBins<A> held;
  __shared__ int pixel[kBinsHeld][kTileChannels + 1];  // tile pixel of a gradient, or -1
  const int self = static_cast<int>(threadIdx.x), row = self / kWarp, lane = self % kWarp;
  const FeatureMaps &maps = pooling.p.maps, &pooled = pooling.p.pooled;
  const TileGrid tiles = tile_grid(maps.n, maps.h, maps.w, kTile);
  const int64_t blocks = tile_blocks(maps);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Part part = part_of(block, maps.c, kTileChannels);
    const TileOrigin tile = tile_origin(tiles, part.row, kTile);
    TileSum<A> sum;
    visit_rois<1>(lists, tile.image, tile, [&](const int64_t* roi, int) {
      const int64_t k = *roi;
      const auto rows = bins_reaching(pooling.rows(k), pooled.h, maps.h, tile.y);
      const auto cols = bins_reaching(pooling.cols(k), pooled.w, maps.w, tile.x);
      const int64_t across = cols.size(), all = rows.size() * across;
      for (int64_t begin = 0; begin < all; begin += kBinsHeld) {
        const int bins = static_cast<int>(math::min(int64_t(kBinsHeld), all - begin));
        __syncthreads();
        share_bins(pooled.channels_last, bins, kTileChannels, [&](int b, int c) {
          pixel[b][c] = -1;
          if (c >= part.count) return;
          const int64_t from =
              pooled.strides.at(k, part.first + c, rows.begin + (begin + b) / across,
                                cols.begin + (begin + b) % across);
          held.grad[b][c] = static_cast<A>(grad[from]);
          const int64_t index = argmax[from];
          const int64_t y = index / maps.w - tile.y, x = index % maps.w - tile.x;
          const bool inside = index >= 0 && y >= 0 && y < kTile && x >= 0 && x < kTile;
          if (inside) pixel[b][c] = static_cast<int>(y * kTile + x);
        });
        __syncthreads();
        for (int b = 0; b < bins; ++b) {
          for (int j = 0; j < kLaneChannels; ++j) {
            const int c = lane + j * kWarp, to = pixel[b][c] - row * kTile;
            const A g = held.grad[b][c];
            for (int x = 0; x < kTile; ++x) sum.at[x][j] += to == x ? g : A(0);
          }
        }
      }
    });
    sum.write(held, output + maps.strides.at(tile.image, part.first, 0, 0), maps.strides,
              part.count, tile, maps.h, maps.w);
  }
}

}  // namespace

void roi_pool_forward(const Tensor& input, const Tensor& boxes, double spatial_scale, int64_t,
                      int64_t, Tensor& output, Tensor& argmax) {
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor rois = wide(boxes, input.scalar_type());
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    const PixelPooling<accumulate_t<scalar_t>> pooling{{{rois, spatial_scale, output, maps}, {}}};
    const FeatureMaps& out = pooling.p.pooled;
    const auto run = [&](auto n, auto channels_last) {
      launch(roi_pool_forward_kernel<n, channels_last, scalar_t>,
             blocks_for(out.n * ceil_div(out.c, n) * out.pixels()), pooling, maps, output, argmax);
    };
    with_layout<scalar_t>(pooling.p.maps.channels_last, out.c,
                          {maps.const_data_ptr(), output.const_data_ptr(), argmax.const_data_ptr()},
                          run);
  });
}

void roi_pool_backward(const Tensor& grad, const Tensor&, const Tensor& boxes, const Tensor& argmax,
                       double spatial_scale, int64_t, int64_t, int64_t batch_size, int64_t, int64_t,
                       int64_t, Tensor& map) {
  const auto format = map.suggest_memory_format();
  const Tensor outer = grad.contiguous(format), index = argmax.contiguous(format);
  const Tensor rois = wide(boxes, grad.scalar_type());
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    const PixelPooling<accumulate_t<scalar_t>> pooling{{{rois, spatial_scale, outer, map}, {}}};
    const auto [lists, memory] = list_rois(pooling, boxes.size(0), batch_size, map.options());
    launch(roi_pool_backward_kernel<scalar_t>, blocks_for(tile_blocks(pooling.p.maps), 1), pooling,
           lists, outer, index, map);
  });
}

}  // namespace detops::cuda
