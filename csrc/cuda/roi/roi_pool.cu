// SPDX-License-Identifier: MIT
#include <limits>

#include "../../math/roi_pool.h"
#include "../../ops.h"
#include "roi.cuh"

namespace detops::cuda {
namespace {

template <typename A>
struct RoIPoolParams {
  const A* rois;  // [K, 5]
  A scale;
  int64_t count, images, channels, height, width;
  int64_t pooled_height, pooled_width;
  bool channels_last;

  __device__ math::PoolAxis<A> row_axis(const A* roi) const {
    return math::pool_axis(roi[2], roi[4], scale, 1, pooled_height);
  }
  __device__ math::PoolAxis<A> col_axis(const A* roi) const {
    return math::pool_axis(roi[1], roi[3], scale, 1, pooled_width);
  }
};

// A thread has a bin of n channels; neighbouring threads have the channels beside in channels_last,
// else the bins beside.
template <int n, bool channels_last, typename T, typename A>
__global__ void roi_pool_forward_kernel(RoIPoolParams<A> p, const T* input, T* output,
                                        int32_t* argmax) {
  const Strides s = strides_of(channels_last, p.channels, p.height, p.width);
  const Strides os = strides_of(channels_last, p.channels, p.pooled_height, p.pooled_width);
  const int64_t vectors = ceil_div(p.channels, n);
  DETOPS_FOR_EACH(i, p.count * vectors * p.pooled_height * p.pooled_width) {
    const Position at = position_of(i, channels_last, vectors, p.pooled_height, p.pooled_width);
    const int left = static_cast<int>(math::min(int64_t(n), p.channels - at.c * n));
    const A* roi = p.rois + 5 * at.n;
    const int64_t image = image_of(roi, p.images);
    math::PixelRange rows{0, 0}, cols{0, 0};
    if (image >= 0) {
      rows = math::bin_range(p.row_axis(roi), at.h, p.height);
      cols = math::bin_range(p.col_axis(roi), at.w, p.width);
    }
    const bool empty = rows.begin == rows.end || cols.begin == cols.end;
    A best[n];
    Vector<int32_t, n> index;
    for (int j = 0; j < n; ++j) {
      best[j] = -std::numeric_limits<A>::infinity();
      index.at[j] = -1;
    }
    const Channels<n, channels_last, const T> map(
        input + math::max(image, int64_t(0)) * s.n + at.c * n * s.c, s.c, left);
    for (int64_t y = rows.begin; !empty && y < rows.end; ++y) {
      const auto row = map + y * s.h;
      for (int64_t x = cols.begin; x < cols.end; ++x) {
        const Vector<T, n> values = row[x * s.w];
        for (int j = 0; j < n; ++j) {
          const A value = static_cast<A>(values.at[j]);
          if (!math::exceeds(value, best[j])) continue;
          best[j] = value;
          index.at[j] = static_cast<int32_t>(y * p.width + x);
        }
      }
    }
    Vector<T, n> pooled{};
    if (!empty) pooled = map[rows.begin * s.h + cols.begin * s.w];
    for (int j = 0; !empty && j < n; ++j) {
      if (index.at[j] >= 0) {
        pooled.at[j] = static_cast<T>(best[j]);
      } else {
        index.at[j] = static_cast<int32_t>(rows.begin * p.width + cols.begin);
      }
    }
    const int64_t to = at.n * os.n + at.c * n * os.c + at.h * os.h + at.w * os.w;
    store_channels<n, channels_last>(output + to, os.c, left, pooled);
    // Of fresh memory, which is aligned for 32 bytes as well.
    store_channels<n, channels_last>(argmax + to, os.c, left, index);
  }
}

template <typename A>
struct PlaceRoI {
  RoIPoolParams<A> p;

  __device__ int64_t operator()(int64_t k, Window& window) const {
    const A* roi = p.rois + 5 * k;
    const math::PoolAxis<A> rows = p.row_axis(roi), cols = p.col_axis(roi);
    window = {math::bin_range(rows, 0, p.height).begin,
              math::bin_range(rows, p.pooled_height - 1, p.height).end,
              math::bin_range(cols, 0, p.width).begin,
              math::bin_range(cols, p.pooled_width - 1, p.width).end};
    return image_of(roi, p.images);
  }
};

// The bins [first, last) that have pixels in [tile, tile + kTile).
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

// Owner-computes, see roi.cuh.
template <typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    roi_pool_backward_kernel(RoIPoolParams<A> p, RoILists lists, const T* grad,
                             const int32_t* argmax, T* output) {
  __shared__ TileBins<A> held;
  __shared__ int pixel[kBinsHeld][kTileChannels + 1];  // of the tile, that a gradient goes to
  const int row = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Strides s = strides_of(p.channels_last, p.channels, p.height, p.width);
  const Strides gs = strides_of(p.channels_last, p.channels, p.pooled_height, p.pooled_width);
  const TileGrid tiles = tile_grid(p.images, p.height, p.width, kTile);
  const int64_t blocks = tiles.count() * ceil_div(p.channels, kTileChannels);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Part part = part_of(block, p.channels, kTileChannels);
    const TilePlace at = tile_place(tiles, part.row, kTile);
    const int64_t image = at.image, tile_y = at.y, tile_x = at.x;
    TileSum<A> sum;
    visit_rois(lists, image, tile_y, tile_x, kTile, [&](int64_t k) {
      const A* roi = p.rois + 5 * k;
      const auto rows = bins_reaching(p.row_axis(roi), p.pooled_height, p.height, tile_y);
      const auto cols = bins_reaching(p.col_axis(roi), p.pooled_width, p.width, tile_x);
      const int64_t across = cols.end - cols.begin, all = (rows.end - rows.begin) * across;
      for (int64_t begin = 0; begin < all; begin += kBinsHeld) {
        const int bins = static_cast<int>(math::min(int64_t(kBinsHeld), all - begin));
        const auto place = [&](int b, int c) {
          const int64_t ph = rows.begin + (begin + b) / across;
          const int64_t pw = cols.begin + (begin + b) % across;
          return k * gs.n + (part.first + c) * gs.c + ph * gs.h + pw * gs.w;
        };
        __syncthreads();
        hold(held.grad, p.channels_last, part.count, bins,
             [&](int b, int c) { return static_cast<A>(grad[place(b, c)]); });
        hold(pixel, p.channels_last, part.count, bins, [&](int b, int c) {
          const int64_t index = argmax[place(b, c)];
          const int64_t y = index / p.width - tile_y, x = index % p.width - tile_x;
          const bool inside = index >= 0 && y >= 0 && y < kTile && x >= 0 && x < kTile;
          return inside ? static_cast<int>(y * kTile + x) : -1;
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
    sum.write(held, output + image * s.n + part.first * s.c, s, part.count, tile_y, tile_x,
              p.height, p.width);
  }
}

template <typename A>
RoIPoolParams<A> make_params(const Tensor& maps, const Tensor& rois, double scale,
                             int64_t pooled_height, int64_t pooled_width) {
  return {rois.const_data_ptr<A>(),
          static_cast<A>(scale),
          rois.size(0),
          maps.size(0),
          maps.size(1),
          maps.size(2),
          maps.size(3),
          pooled_height,
          pooled_width,
          is_channels_last(maps)};
}

}  // namespace

void roi_pool_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                      int64_t pooled_height, int64_t pooled_width, Tensor& output, Tensor& argmax) {
  if (input.numel() == 0) {  // no image that a batch index could name
    output.zero_();
    argmax.fill_(-1);
    return;
  }
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor wide_rois = wide(rois, input.scalar_type());
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const auto params = make_params<A>(maps, wide_rois, spatial_scale, pooled_height, pooled_width);
    with_layout<scalar_t>(
        params.channels_last, params.channels,
        {maps.const_data_ptr(), output.const_data_ptr(), argmax.const_data_ptr()},
        [&](auto n, auto channels_last) {
          launch("roi_pool", roi_pool_forward_kernel<n, channels_last, scalar_t, A>,
                 blocks_for(output.numel() / params.channels * ceil_div(params.channels, n)),
                 params, maps.const_data_ptr<scalar_t>(), output.mutable_data_ptr<scalar_t>(),
                 argmax.mutable_data_ptr<int32_t>());
        });
  });
}

void roi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& rois,
                       const Tensor& argmax, double spatial_scale, int64_t pooled_height,
                       int64_t pooled_width, int64_t batch_size, int64_t channels, int64_t height,
                       int64_t width, Tensor& map) {
  const auto format = map.suggest_memory_format();
  const Tensor pooled = grad.contiguous(format), index = argmax.contiguous(format);
  const Tensor wide_rois = wide(rois, grad.scalar_type());
  const int64_t blocks =
      tile_grid(batch_size, height, width, kTile).count() * ceil_div(channels, kTileChannels);
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const auto params = make_params<A>(map, wide_rois, spatial_scale, pooled_height, pooled_width);
    const auto [lists, memory] = list_rois("roi_pool_backward", PlaceRoI<A>{params}, rois.size(0),
                                           batch_size, map.options());
    launch("roi_pool_backward", roi_pool_backward_kernel<scalar_t, A>, blocks_for(blocks, 1),
           params, lists, pooled.const_data_ptr<scalar_t>(), index.const_data_ptr<int32_t>(),
           map.mutable_data_ptr<scalar_t>());
  });
}

}  // namespace detops::cuda
