// SPDX-License-Identifier: MIT
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include "../math/roi_pool.h"
#include "../ops.h"
#include "roi.cuh"

// "R-FCN" (Dai et al., 2016), section 2: bin (ph, pw) of channel c reads channel
// (c * pooled_height + ph) * pooled_width + pw of the map alone. PSRoIAlign and PSRoIPool differ in
// their rules of an axis only; both ops are here.
namespace detops::cuda {
namespace {

template <typename A>
struct PSParams {
  const A* rois;  // [K, 5]
  A scale;
  int64_t count, images, groups, height, width;  // groups: channels of the output
  int64_t pooled_height, pooled_width, sampling_ratio;
  bool channels_last;
};

template <typename A>
struct AlignRule {
  __device__ static math::RoIAxis<A> axis(const PSParams<A>& p, A low, A high, int64_t pooled) {
    return math::roi_axis(low, high, p.scale, true, pooled, p.sampling_ratio);
  }
};

template <typename A>
struct PoolRule {
  __device__ static math::PoolAxis<A> axis(const PSParams<A>& p, A low, A high, int64_t pooled) {
    return math::pool_axis(low, high, p.scale, 0, pooled);
  }
};

template <typename Rule, typename T, typename A>
__global__ void ps_roi_align_forward_kernel(PSParams<A> p, const T* input, T* output) {
  const int64_t bins = p.pooled_height * p.pooled_width;
  DETOPS_FOR_EACH(i, p.count * p.groups * bins) {
    const Position at = position_of(i, p.channels_last, p.groups, p.pooled_height, p.pooled_width);
    const A* roi = p.rois + 5 * at.n;
    const int64_t image = image_of(roi, p.images);
    A sum = 0;
    if (image >= 0) {
      const Strides s = strides_of(p.channels_last, p.groups * bins, p.height, p.width);
      const int64_t channel = (at.c * p.pooled_height + at.h) * p.pooled_width + at.w;
      const T* map = input + image * s.n + channel * s.c;
      const auto rows = Rule::axis(p, roi[2], roi[4], p.pooled_height);
      const auto cols = Rule::axis(p, roi[1], roi[3], p.pooled_width);
      math::visit_taps(rows, at.h, p.height, [&](int64_t y, A wy) {
        math::visit_taps(cols, at.w, p.width, [&](int64_t x, A wx) {
          sum += wy * wx * static_cast<A>(map[y * s.h + x * s.w]);
        });
      });
    }
    output[i] = static_cast<T>(sum);
  }
}

// Whether the axis can touch pixels [tile, tile + kTile). Generous: exact weights follow.
template <typename Axis>
__device__ bool reaches(const Axis& axis, int64_t pooled, int64_t tile) {
  const double start = double(axis.start), end = start + double(pooled) * double(axis.bin);
  return math::max(start, end) >= double(tile - 2) &&
         math::min(start, end) <= double(tile + kTile + 1);
}

// Of pixel `at` in bin `p`.
template <typename A, typename Axis>
__device__ A weight_of(const Axis& axis, int64_t p, int64_t size, int64_t at) {
  A weight = 0;
  math::visit_taps(axis, p, size, [&](int64_t index, A w) { weight += index == at ? w : A(0); });
  return weight;
}

template <typename Rule, typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    ps_roi_align_backward_kernel(PSParams<A> p, const T* grad, T* output, int64_t tiles_high,
                                 int64_t tiles_wide) {
  const int64_t channels = p.groups * p.pooled_height * p.pooled_width;
  const TilePlace own = tile_place(tiles_high, tiles_wide);
  const int64_t y = own.tile_y + own.py, x = own.tile_x + own.px;
  const Strides gs = strides_of(p.channels_last, p.groups, p.pooled_height, p.pooled_width);
  A sum[kChannelsPerThread] = {};
  const auto reached = [&](int64_t k) {
    const A* roi = p.rois + 5 * k;
    return image_of(roi, p.images) == own.image &&
           reaches(Rule::axis(p, roi[2], roi[4], p.pooled_height), p.pooled_height, own.tile_y) &&
           reaches(Rule::axis(p, roi[1], roi[3], p.pooled_width), p.pooled_width, own.tile_x);
  };
  visit_reaching(p.count, reached, [&](int64_t k) {
    const A* roi = p.rois + 5 * k;
    const auto rows = Rule::axis(p, roi[2], roi[4], p.pooled_height);
    const auto cols = Rule::axis(p, roi[1], roi[3], p.pooled_width);
    for (int j = 0; j < kChannelsPerThread; ++j) {
      const int64_t channel = own.first_channel + j * kChannelLanes;
      if (channel >= channels) continue;
      const int64_t pw = channel % p.pooled_width, ph = channel / p.pooled_width % p.pooled_height;
      const A of_row = weight_of<A>(rows, ph, p.height, y);
      if (of_row == 0) continue;
      const A of_col = weight_of<A>(cols, pw, p.width, x);
      if (of_col == 0) continue;
      const int64_t c = channel / p.pooled_width / p.pooled_height;
      const int64_t from = k * gs.n + c * gs.c + ph * gs.h + pw * gs.w;
      sum[j] += of_row * of_col * static_cast<A>(grad[from]);
    }
  });
  if (y >= p.height || x >= p.width) return;
  const Strides s = strides_of(p.channels_last, channels, p.height, p.width);
  T* out = output + own.image * s.n + y * s.h + x * s.w;
  for (int j = 0; j < kChannelsPerThread; ++j) {
    const int64_t c = own.first_channel + j * kChannelLanes;
    if (c < channels) out[c * s.c] = static_cast<T>(sum[j]);
  }
}

struct Pooling {
  double scale;
  int64_t pooled_height, pooled_width, sampling_ratio;
};

// `maps` gives the layout of both sides.
template <typename A>
PSParams<A> make_params(const Pooling& pooling, const Tensor& maps, const Tensor& rois,
                        int64_t groups) {
  return {rois.const_data_ptr<A>(),
          static_cast<A>(pooling.scale),
          rois.size(0),
          maps.size(0),
          groups,
          maps.size(2),
          maps.size(3),
          pooling.pooled_height,
          pooling.pooled_width,
          pooling.sampling_ratio,
          is_channels_last(maps)};
}

template <template <typename> class Rule>
Tensor run_forward(const Pooling& pooling, const Tensor& input, const Tensor& rois, Tensor output) {
  if (output.numel() == 0) return output;
  if (input.numel() == 0) return output.zero_();  // no image that a batch index could name
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor wide_rois = wide(rois, input.scalar_type());
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "detops.ps_roi_align", [&] {
        using A = at::opmath_type<scalar_t>;
        launch("ps_roi_align", ps_roi_align_forward_kernel<Rule<A>, scalar_t, A>,
               blocks_for(output.numel()), make_params<A>(pooling, maps, wide_rois, output.size(1)),
               maps.const_data_ptr<scalar_t>(), output.mutable_data_ptr<scalar_t>());
      });
  return output;
}

template <template <typename> class Rule>
Tensor run_backward(const Pooling& pooling, const Tensor& grad, const Tensor& rois, Tensor maps) {
  if (maps.numel() == 0) return maps;
  const Tensor pooled = grad.contiguous(maps.suggest_memory_format());
  const Tensor wide_rois = wide(rois, grad.scalar_type());
  const Tiles tiles = tiles_of(maps.size(0), maps.size(1), maps.size(2), maps.size(3));
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, grad.scalar_type(), "detops.ps_roi_align_backward", [&] {
        using A = at::opmath_type<scalar_t>;
        launch("ps_roi_align_backward", ps_roi_align_backward_kernel<Rule<A>, scalar_t, A>,
               tiles.grid, make_params<A>(pooling, maps, wide_rois, grad.size(1)),
               pooled.const_data_ptr<scalar_t>(), maps.mutable_data_ptr<scalar_t>(), tiles.high,
               tiles.wide);
      });
  return maps;
}

}  // namespace

Tensor ps_roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                            int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio) {
  const at::cuda::OptionalCUDAGuard guard(input.device());
  Tensor output = meta::ps_roi_align_forward(input, rois, spatial_scale, pooled_height,
                                             pooled_width, sampling_ratio);
  return run_forward<AlignRule>({spatial_scale, pooled_height, pooled_width, sampling_ratio}, input,
                                rois, std::move(output));
}

Tensor ps_roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                             int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                             int64_t channels, int64_t height, int64_t width,
                             int64_t sampling_ratio) {
  const at::cuda::OptionalCUDAGuard guard(grad.device());
  Tensor maps = meta::ps_roi_align_backward(grad, rois, spatial_scale, pooled_height, pooled_width,
                                            batch_size, channels, height, width, sampling_ratio);
  return run_backward<AlignRule>({spatial_scale, pooled_height, pooled_width, sampling_ratio}, grad,
                                 rois, std::move(maps));
}

Tensor ps_roi_pool_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                           int64_t pooled_height, int64_t pooled_width) {
  const at::cuda::OptionalCUDAGuard guard(input.device());
  Tensor output =
      meta::ps_roi_pool_forward(input, rois, spatial_scale, pooled_height, pooled_width);
  return run_forward<PoolRule>({spatial_scale, pooled_height, pooled_width, 0}, input, rois,
                               std::move(output));
}

Tensor ps_roi_pool_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                            int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                            int64_t channels, int64_t height, int64_t width) {
  const at::cuda::OptionalCUDAGuard guard(grad.device());
  Tensor maps = meta::ps_roi_pool_backward(grad, rois, spatial_scale, pooled_height, pooled_width,
                                           batch_size, channels, height, width);
  return run_backward<PoolRule>({spatial_scale, pooled_height, pooled_width, 0}, grad, rois,
                                std::move(maps));
}

}  // namespace detops::cuda
