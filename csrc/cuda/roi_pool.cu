// SPDX-License-Identifier: MIT
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include <limits>

#include "../math/roi_pool.h"
#include "../ops.h"
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

template <typename T, typename A>
__global__ void roi_pool_forward_kernel(RoIPoolParams<A> p, const T* input, T* output,
                                        int32_t* argmax) {
  DETOPS_FOR_EACH(i, p.count * p.channels * p.pooled_height * p.pooled_width) {
    const Position at =
        position_of(i, p.channels_last, p.channels, p.pooled_height, p.pooled_width);
    const A* roi = p.rois + 5 * at.n;
    const int64_t image = image_of(roi, p.images);
    math::PixelRange rows{0, 0}, cols{0, 0};
    if (image >= 0) {
      rows = math::bin_range(p.row_axis(roi), at.h, p.height);
      cols = math::bin_range(p.col_axis(roi), at.w, p.width);
    }
    if (rows.begin == rows.end || cols.begin == cols.end) {
      output[i] = static_cast<T>(A(0));
      argmax[i] = -1;
      continue;
    }
    const Strides s = strides_of(p.channels_last, p.channels, p.height, p.width);
    const T* map = input + image * s.n + at.c * s.c;
    A best = -std::numeric_limits<A>::infinity();
    int64_t index = -1;
    for (int64_t y = rows.begin; y < rows.end; ++y) {
      for (int64_t x = cols.begin; x < cols.end; ++x) {
        const A value = static_cast<A>(map[y * s.h + x * s.w]);
        if (math::exceeds(value, best)) best = value, index = y * p.width + x;
      }
    }
    if (index < 0) {
      best = static_cast<A>(map[rows.begin * s.h + cols.begin * s.w]);
      index = rows.begin * p.width + cols.begin;
    }
    output[i] = static_cast<T>(best);
    argmax[i] = static_cast<int32_t>(index);
  }
}

// Whether the RoI has pixels in [tile, tile + kTile).
template <typename A>
__device__ bool reaches(const math::PoolAxis<A>& axis, int64_t pooled, int64_t size, int64_t tile) {
  return math::bin_range(axis, 0, size).begin < tile + kTile &&
         math::bin_range(axis, pooled - 1, size).end > tile;
}

template <typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    roi_pool_backward_kernel(RoIPoolParams<A> p, const T* grad, const int32_t* argmax, T* output,
                             int64_t tiles_high, int64_t tiles_wide) {
  const TilePlace own = tile_place(tiles_high, tiles_wide);
  const int64_t y = own.tile_y + own.py, x = own.tile_x + own.px;
  const Strides gs = strides_of(p.channels_last, p.channels, p.pooled_height, p.pooled_width);
  A sum[kChannelsPerThread] = {};
  const auto reached = [&](int64_t k) {
    const A* roi = p.rois + 5 * k;
    return image_of(roi, p.images) == own.image &&
           reaches(p.row_axis(roi), p.pooled_height, p.height, own.tile_y) &&
           reaches(p.col_axis(roi), p.pooled_width, p.width, own.tile_x);
  };
  visit_reaching(p.count, reached, [&](int64_t k) {
    const auto rows = p.row_axis(p.rois + 5 * k), cols = p.col_axis(p.rois + 5 * k);
    for (int64_t ph = 0; ph < p.pooled_height; ++ph) {
      const math::PixelRange of_row = math::bin_range(rows, ph, p.height);
      if (y < of_row.begin || y >= of_row.end) continue;
      for (int64_t pw = 0; pw < p.pooled_width; ++pw) {
        const math::PixelRange of_col = math::bin_range(cols, pw, p.width);
        if (x < of_col.begin || x >= of_col.end) continue;
        for (int j = 0; j < kChannelsPerThread; ++j) {
          const int64_t c = own.first_channel + j * kChannelLanes;
          if (c >= p.channels) continue;
          const int64_t from = k * gs.n + c * gs.c + ph * gs.h + pw * gs.w;
          if (argmax[from] == y * p.width + x) sum[j] += static_cast<A>(grad[from]);
        }
      }
    }
  });
  if (y >= p.height || x >= p.width) return;
  const Strides s = strides_of(p.channels_last, p.channels, p.height, p.width);
  T* out = output + own.image * s.n + y * s.h + x * s.w;
  for (int j = 0; j < kChannelsPerThread; ++j) {
    const int64_t c = own.first_channel + j * kChannelLanes;
    if (c < p.channels) out[c * s.c] = static_cast<T>(sum[j]);
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

std::tuple<Tensor, Tensor> roi_pool_forward(const Tensor& input, const Tensor& rois,
                                            double spatial_scale, int64_t pooled_height,
                                            int64_t pooled_width) {
  const at::cuda::OptionalCUDAGuard guard(input.device());
  std::tuple<Tensor, Tensor> result =
      meta::roi_pool_forward(input, rois, spatial_scale, pooled_height, pooled_width);
  Tensor &output = std::get<0>(result), &argmax = std::get<1>(result);
  if (output.numel() == 0) return result;
  if (input.numel() == 0) {  // no image that a batch index could name
    output.zero_();
    argmax.fill_(-1);
    return result;
  }
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor wide_rois = wide(rois, input.scalar_type());
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "detops.roi_pool", [&] {
        using A = at::opmath_type<scalar_t>;
        launch("roi_pool", roi_pool_forward_kernel<scalar_t, A>, blocks_for(output.numel()),
               make_params<A>(maps, wide_rois, spatial_scale, pooled_height, pooled_width),
               maps.const_data_ptr<scalar_t>(), output.mutable_data_ptr<scalar_t>(),
               argmax.mutable_data_ptr<int32_t>());
      });
  return result;
}

Tensor roi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& rois,
                         const Tensor& argmax, double spatial_scale, int64_t pooled_height,
                         int64_t pooled_width, int64_t batch_size, int64_t channels, int64_t height,
                         int64_t width) {
  const at::cuda::OptionalCUDAGuard guard(grad.device());
  Tensor maps = meta::roi_pool_backward(grad, input, rois, argmax, spatial_scale, pooled_height,
                                        pooled_width, batch_size, channels, height, width);
  if (maps.numel() == 0) return maps;
  const auto format = maps.suggest_memory_format();
  const Tensor pooled = grad.contiguous(format), index = argmax.contiguous(format);
  const Tensor wide_rois = wide(rois, grad.scalar_type());
  const Tiles tiles = tiles_of(batch_size, channels, height, width);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, grad.scalar_type(), "detops.roi_pool_backward", [&] {
        using A = at::opmath_type<scalar_t>;
        launch("roi_pool_backward", roi_pool_backward_kernel<scalar_t, A>, tiles.grid,
               make_params<A>(maps, wide_rois, spatial_scale, pooled_height, pooled_width),
               pooled.const_data_ptr<scalar_t>(), index.const_data_ptr<int32_t>(),
               maps.mutable_data_ptr<scalar_t>(), tiles.high, tiles.wide);
      });
  return maps;
}

}  // namespace detops::cuda
