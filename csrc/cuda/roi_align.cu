// SPDX-License-Identifier: MIT
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include "../math/roi.h"
#include "../ops.h"
#include "roi.cuh"

// RoIAlign on one map is RoIAlign on a pyramid of one level; both ops are here.
namespace detops::cuda {
namespace {

template <typename T>
struct LevelParams {
  T* map;  // [N, C, H, W] in either layout
  int64_t height, width;
  double scale;
};

template <typename T>
struct RoIAlignParams {
  LevelParams<T> levels[meta::kMaxLevels];
  int64_t n_levels, first_level;
  const at::opmath_type<T>* rois;  // [K, 5]
  int64_t count, images, channels;
  int64_t pooled_height, pooled_width, sampling_ratio;
  bool aligned, channels_last;
  double canonical_scale;
  int64_t canonical_level;
};

// Which image and level a RoI reads; image -1 for a batch index out of range, which pools to zeros.
struct Place {
  int64_t image, level;
};

template <typename T>
__device__ Place place_roi(const RoIAlignParams<T>& p, const at::opmath_type<T>* roi) {
  const int64_t image = image_of(roi, p.images);
  if (image < 0) return {-1, 0};
  return {image, p.n_levels == 1
                     ? 0
                     : math::roi_level(roi[1], roi[2], roi[3], roi[4], p.canonical_scale,
                                       p.canonical_level, p.first_level, p.n_levels)};
}

template <typename T, typename A = at::opmath_type<T>>
__device__ math::RoIAxis<A> row_axis(const RoIAlignParams<T>& p, const A* roi, A scale) {
  return math::roi_axis(roi[2], roi[4], scale, p.aligned, p.pooled_height, p.sampling_ratio);
}

template <typename T, typename A = at::opmath_type<T>>
__device__ math::RoIAxis<A> col_axis(const RoIAlignParams<T>& p, const A* roi, A scale) {
  return math::roi_axis(roi[1], roi[3], scale, p.aligned, p.pooled_width, p.sampling_ratio);
}

template <typename T>
__global__ void roi_align_forward_kernel(RoIAlignParams<T> p, T* output) {
  using A = at::opmath_type<T>;
  DETOPS_FOR_EACH(i, p.count * p.channels * p.pooled_height * p.pooled_width) {
    const Position at =
        position_of(i, p.channels_last, p.channels, p.pooled_height, p.pooled_width);
    const A* roi = p.rois + 5 * at.n;
    const Place place = place_roi(p, roi);
    A sum = 0;
    if (place.image >= 0) {
      const LevelParams<T>& level = p.levels[place.level];
      const Strides s = strides_of(p.channels_last, p.channels, level.height, level.width);
      const T* map = level.map + place.image * s.n + at.c * s.c;
      const auto rows = row_axis(p, roi, A(level.scale)), cols = col_axis(p, roi, A(level.scale));
      math::visit_taps(rows, at.h, level.height, [&](int64_t y, A wy) {
        math::visit_taps(cols, at.w, level.width, [&](int64_t x, A wx) {
          sum += wy * wx * static_cast<A>(map[y * s.h + x * s.w]);
        });
      });
    }
    output[i] = static_cast<T>(sum);
  }
}

constexpr int kBins = 32;  // bins a side whose weights are held at a time

// Whether samples of the axis can touch pixels [tile, tile + kTile). Generous: exact weights
// follow.
template <typename A>
__device__ bool reaches(const math::RoIAxis<A>& axis, int64_t pooled, int64_t tile) {
  const A end = axis.start + A(pooled) * axis.bin;
  const A low = math::min(axis.start, end), high = math::max(axis.start, end);
  return axis.count > 0 && high >= A(tile - 2) && low <= A(tile + kTile + 1);
}

// weight[pixel][bin] of one axis, for bins [first, first + kBins). One thread owns a bin.
template <typename A>
__device__ void fill_weights(const math::RoIAxis<A>& axis, int64_t pooled, int64_t first,
                             int64_t size, int64_t tile, int bin, A (*weight)[kBins]) {
  for (int pixel = 0; pixel < kTile; ++pixel) weight[pixel][bin] = 0;
  if (first + bin >= pooled) return;
  math::visit_taps(axis, first + bin, size, [&](int64_t index, A w) {
    const int64_t pixel = index - tile;
    if (pixel >= 0 && pixel < kTile) weight[pixel][bin] += w;
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    roi_align_backward_kernel(RoIAlignParams<T> p, const T* grad, int64_t level_index,
                              int64_t tiles_high, int64_t tiles_wide) {
  using A = at::opmath_type<T>;
  __shared__ A row_weight[kTile][kBins], col_weight[kTile][kBins];
  const LevelParams<T>& level = p.levels[level_index];
  const TilePlace own = tile_place(tiles_high, tiles_wide);
  const int self = static_cast<int>(threadIdx.x);
  const Strides gs = strides_of(p.channels_last, p.channels, p.pooled_height, p.pooled_width);
  A sum[kChannelsPerThread] = {};

  const auto reached = [&](int64_t k) {
    const A* roi = p.rois + 5 * k;
    const Place place = place_roi(p, roi);
    return place.image == own.image && place.level == level_index &&
           reaches(row_axis(p, roi, A(level.scale)), p.pooled_height, own.tile_y) &&
           reaches(col_axis(p, roi, A(level.scale)), p.pooled_width, own.tile_x);
  };
  visit_reaching(p.count, reached, [&](int64_t k) {
    const A* roi = p.rois + 5 * k;
    const auto rows = row_axis(p, roi, A(level.scale)), cols = col_axis(p, roi, A(level.scale));
    const T* pooled = grad + k * gs.n;
    for (int64_t ph0 = 0; ph0 < p.pooled_height; ph0 += kBins) {
      for (int64_t pw0 = 0; pw0 < p.pooled_width; pw0 += kBins) {
        __syncthreads();
        if (self < kBins) {
          fill_weights(rows, p.pooled_height, ph0, level.height, own.tile_y, self, row_weight);
        } else if (self < 2 * kBins) {
          fill_weights(cols, p.pooled_width, pw0, level.width, own.tile_x, self - kBins,
                       col_weight);
        }
        __syncthreads();
        const int64_t bins_high = min(int64_t(kBins), p.pooled_height - ph0);
        const int64_t bins_wide = min(int64_t(kBins), p.pooled_width - pw0);
        for (int64_t r = 0; r < bins_high; ++r) {
          if (row_weight[own.py][r] == 0) continue;
          for (int64_t b = 0; b < bins_wide; ++b) {
            const A weight = row_weight[own.py][r] * col_weight[own.px][b];
            if (weight == 0) continue;
            const T* g = pooled + (ph0 + r) * gs.h + (pw0 + b) * gs.w;
            for (int j = 0; j < kChannelsPerThread; ++j) {
              const int64_t c = own.first_channel + j * kChannelLanes;
              if (c < p.channels) sum[j] += weight * static_cast<A>(g[c * gs.c]);
            }
          }
        }
      }
    }
  });

  const int64_t y = own.tile_y + own.py, x = own.tile_x + own.px;
  if (y >= level.height || x >= level.width) return;
  const Strides s = strides_of(p.channels_last, p.channels, level.height, level.width);
  T* out = level.map + own.image * s.n + y * s.h + x * s.w;
  for (int j = 0; j < kChannelsPerThread; ++j) {
    const int64_t c = own.first_channel + j * kChannelLanes;
    if (c < p.channels) out[c * s.c] = static_cast<T>(sum[j]);
  }
}

struct Pooling {
  at::ArrayRef<double> scales;  // one per level
  int64_t pooled_height, pooled_width, sampling_ratio;
  bool aligned;
  double canonical_scale;
  int64_t canonical_level;
};

// `maps` and `rois` are contiguous in their layout.
template <typename T>
RoIAlignParams<T> make_params(const Pooling& pooling, at::TensorList maps, const Tensor& rois) {
  RoIAlignParams<T> p{};
  for (size_t i = 0; i < maps.size(); ++i) {
    p.levels[i] = {static_cast<T*>(maps[i].data_ptr()), maps[i].size(2), maps[i].size(3),
                   pooling.scales[i]};
  }
  p.n_levels = static_cast<int64_t>(maps.size());
  p.first_level = std::llround(-std::log2(pooling.scales[0]));
  p.rois = rois.const_data_ptr<at::opmath_type<T>>();
  p.count = rois.size(0);
  p.images = maps[0].size(0);
  p.channels = maps[0].size(1);
  p.pooled_height = pooling.pooled_height;
  p.pooled_width = pooling.pooled_width;
  p.sampling_ratio = pooling.sampling_ratio;
  p.aligned = pooling.aligned;
  p.channels_last = is_channels_last(maps[0]);
  p.canonical_scale = pooling.canonical_scale;
  p.canonical_level = pooling.canonical_level;
  return p;
}

Tensor run_forward(const Pooling& pooling, at::TensorList inputs, const Tensor& rois,
                   Tensor output) {
  if (output.numel() == 0) return output;
  if (inputs[0].numel() == 0) return output.zero_();  // no image that a batch index could name
  const auto format = inputs[0].suggest_memory_format();
  std::vector<Tensor> maps;
  for (const Tensor& input : inputs) maps.push_back(input.contiguous(format));
  const Tensor wide_rois = wide(rois, output.scalar_type());
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, output.scalar_type(), "detops.roi_align", [&] {
        launch("roi_align", roi_align_forward_kernel<scalar_t>, blocks_for(output.numel()),
               make_params<scalar_t>(pooling, maps, wide_rois),
               output.mutable_data_ptr<scalar_t>());
      });
  return output;
}

std::vector<Tensor> run_backward(const Pooling& pooling, const Tensor& grad, const Tensor& rois,
                                 std::vector<Tensor> maps) {
  if (maps[0].size(0) * maps[0].size(1) == 0) return maps;
  const Tensor pooled = grad.contiguous(maps[0].suggest_memory_format());
  const Tensor wide_rois = wide(rois, grad.scalar_type());
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, grad.scalar_type(), "detops.roi_align_backward", [&] {
        const auto params = make_params<scalar_t>(pooling, maps, wide_rois);
        for (size_t level = 0; level < maps.size(); ++level) {
          const Tiles tiles =
              tiles_of(params.images, params.channels, maps[level].size(2), maps[level].size(3));
          launch("roi_align_backward", roi_align_backward_kernel<scalar_t>, tiles.grid, params,
                 pooled.const_data_ptr<scalar_t>(), static_cast<int64_t>(level), tiles.high,
                 tiles.wide);
        }
      });
  return maps;
}

}  // namespace

Tensor roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                         int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                         bool aligned) {
  const at::cuda::OptionalCUDAGuard guard(input.device());
  Tensor output = meta::roi_align_forward(input, rois, spatial_scale, pooled_height, pooled_width,
                                          sampling_ratio, aligned);
  return run_forward({spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned, 0, 0},
                     input, rois, std::move(output));
}

Tensor roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                          int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                          int64_t channels, int64_t height, int64_t width, int64_t sampling_ratio,
                          bool aligned) {
  const at::cuda::OptionalCUDAGuard guard(grad.device());
  Tensor map =
      meta::roi_align_backward(grad, rois, spatial_scale, pooled_height, pooled_width, batch_size,
                               channels, height, width, sampling_ratio, aligned);
  return run_backward({spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned, 0, 0},
                      grad, rois, {std::move(map)})[0];
}

Tensor multiscale_roi_align_forward(at::TensorList inputs, const Tensor& rois,
                                    at::ArrayRef<double> spatial_scales, int64_t pooled_height,
                                    int64_t pooled_width, int64_t sampling_ratio, bool aligned,
                                    double canonical_scale, int64_t canonical_level) {
  const at::cuda::OptionalCUDAGuard guard(rois.device());
  Tensor output =
      meta::multiscale_roi_align_forward(inputs, rois, spatial_scales, pooled_height, pooled_width,
                                         sampling_ratio, aligned, canonical_scale, canonical_level);
  return run_forward({spatial_scales, pooled_height, pooled_width, sampling_ratio, aligned,
                      canonical_scale, canonical_level},
                     inputs, rois, std::move(output));
}

std::vector<Tensor> multiscale_roi_align_backward(const Tensor& grad, const Tensor& rois,
                                                  at::ArrayRef<double> spatial_scales,
                                                  int64_t pooled_height, int64_t pooled_width,
                                                  int64_t batch_size, int64_t channels,
                                                  at::IntArrayRef heights, at::IntArrayRef widths,
                                                  int64_t sampling_ratio, bool aligned,
                                                  double canonical_scale, int64_t canonical_level) {
  const at::cuda::OptionalCUDAGuard guard(grad.device());
  std::vector<Tensor> maps = meta::multiscale_roi_align_backward(
      grad, rois, spatial_scales, pooled_height, pooled_width, batch_size, channels,
      c10::fromIntArrayRefSlow(heights), c10::fromIntArrayRefSlow(widths), sampling_ratio, aligned,
      canonical_scale, canonical_level);
  return run_backward({spatial_scales, pooled_height, pooled_width, sampling_ratio, aligned,
                       canonical_scale, canonical_level},
                      grad, rois, std::move(maps));
}

}  // namespace detops::cuda
