// SPDX-License-Identifier: MIT
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "../ops.h"
#include "kernels.h"
#include "roi_rules.h"

// RoIAlign on one map is RoIAlign on a pyramid of one level; both ops are here.
namespace detops::cpu {
namespace {

struct Pooling {
  const char* op;
  std::vector<double> scales;  // one per level
  int64_t pooled_height, pooled_width, sampling_ratio;
  bool aligned;
  double canonical_scale;
  int64_t canonical_level;
};

struct Level {
  int64_t height, width;
};

// A RoI with its place: which image, which level.
struct Place {
  int64_t image, level;
};

template <typename A>
std::vector<Place> place_rois(const Pooling& pooling, const A* rois, int64_t count,
                              int64_t images) {
  const int64_t levels = static_cast<int64_t>(pooling.scales.size());
  const int64_t first_level = std::llround(-std::log2(pooling.scales.front()));
  std::vector<Place> places(count);
  for (int64_t k = 0; k < count; ++k) {
    const A* roi = rois + 5 * k;
    TORCH_CHECK(roi[0] >= 0 && roi[0] < A(images), "detops.", pooling.op, ": boxes[", k,
                ", 0] is a batch index and must be in [0, ", images, "), got ", roi[0]);
    places[k] = {static_cast<int64_t>(roi[0]),
                 levels == 1
                     ? 0
                     : math::roi_level(roi[1], roi[2], roi[3], roi[4], pooling.canonical_scale,
                                       pooling.canonical_level, first_level, levels)};
  }
  return places;
}

template <typename A>
void build_rules(const Pooling& p, const A* roi, int64_t level, Level map, RoIRules<A>& rules) {
  const A scale = static_cast<A>(p.scales[level]);
  rules.rows.build(
      math::roi_axis(roi[2], roi[4], scale, p.aligned, p.pooled_height, p.sampling_ratio),
      p.pooled_height, map.height);
  rules.cols.build(
      math::roi_axis(roi[1], roi[3], scale, p.aligned, p.pooled_width, p.sampling_ratio),
      p.pooled_width, map.width);
}

bool is_channels_last(const Tensor& t) {
  return t.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
}

// How many RoIs share a pass over a block of channels, so that the block stays in cache.
constexpr int64_t kBatch = 256;

int64_t channel_block(int64_t plane_bytes) {
  constexpr int64_t kCache = 1 << 20;
  return std::max<int64_t>(1, kCache / std::max<int64_t>(1, plane_bytes));
}

template <typename T>
void forward(const Pooling& pooling, const std::vector<Tensor>& inputs, const Tensor& rois,
             Tensor& output) {
  using A = accumulate_t<T>;
  const int64_t count = rois.size(0), channels = output.size(1);
  const int64_t bins = pooling.pooled_height * pooling.pooled_width;
  const bool last = is_channels_last(inputs[0]);
  const A* roi = rois.const_data_ptr<A>();
  const std::vector<Place> places = place_rois(pooling, roi, count, inputs[0].size(0));
  const auto& kernel = kernels().roi_align(static_cast<const T*>(nullptr));
  T* out = static_cast<T*>(output.mutable_data_ptr());

  int64_t largest_plane = 0, widest = 0;
  for (const Tensor& input : inputs) {
    largest_plane = std::max(largest_plane, input.size(2) * input.size(3));
    widest = std::max(widest, input.size(3));
  }
  const int64_t block =
      last ? channels : std::min(channels, channel_block(largest_plane * int64_t(sizeof(T))));

  // Some 16,000 outputs are worth a thread.
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, channels * bins));
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    std::vector<RoIRules<A>> rules(std::min(kBatch, end - begin));
    std::vector<A> scratch(roi_scratch(widest));
    for (int64_t from = begin; from < end; from += kBatch) {
      const int64_t to = std::min(from + kBatch, end);
      for (int64_t k = from; k < to; ++k) {
        const Tensor& input = inputs[places[k].level];
        build_rules(pooling, roi + 5 * k, places[k].level, {input.size(2), input.size(3)},
                    rules[k - from]);
      }
      for (int64_t c = 0; c < channels; c += block) {
        for (int64_t k = from; k < to; ++k) {
          const Tensor& input = inputs[places[k].level];
          const int64_t height = input.size(2), width = input.size(3);
          const T* map = static_cast<const T*>(input.const_data_ptr()) +
                         places[k].image * channels * height * width;
          const RoIRules<A>& rule = rules[k - from];
          const RoITile<T> tile{rule.rows.view(),
                                rule.cols.view(),
                                channels,
                                c,
                                std::min(c + block, channels),
                                height,
                                width,
                                map,
                                out + k * channels * bins,
                                scratch.data()};
          (last ? kernel.forward_channels_last : kernel.forward)(tile);
        }
      }
    }
  });
}

// Threads own (image, block of channels): no two write the same element, and each element adds its
// RoIs in their order, so the bits do not depend on the number of threads.
template <typename A>
void backward(const Pooling& pooling, const Tensor& grad, const Tensor& rois,
              std::vector<Tensor>& maps) {
  const int64_t count = rois.size(0), channels = grad.size(1), images = maps[0].size(0);
  const int64_t bins = pooling.pooled_height * pooling.pooled_width;
  const bool last = is_channels_last(maps[0]);
  const A* roi = rois.const_data_ptr<A>();
  const A* pooled = grad.const_data_ptr<A>();
  const std::vector<Place> places = place_rois(pooling, roi, count, images);
  const auto& kernel = kernels().roi_align_grad(static_cast<const A*>(nullptr));

  std::vector<std::vector<int64_t>> rois_of(images);
  for (int64_t k = 0; k < count; ++k) rois_of[places[k].image].push_back(k);
  int64_t widest = 0, largest_plane = 0;
  for (const Tensor& map : maps) {
    widest = std::max(widest, map.size(3));
    largest_plane = std::max(largest_plane, map.size(2) * map.size(3));
  }
  // channels_last wants long runs, contiguous maps want blocks that fit the cache.
  const int64_t threads = at::get_num_threads();
  const int64_t share = (channels + threads - 1) / threads;
  const int64_t block = std::max<int64_t>(
      1, last ? (share + 15) / 16 * 16
              : std::min(share, channel_block(largest_plane * int64_t(sizeof(A)))));
  const int64_t blocks = (channels + block - 1) / block;

  for (int64_t image = 0; image < images; ++image) {
    const std::vector<int64_t>& ids = rois_of[image];
    for (size_t from = 0; from < ids.size(); from += kBatch) {
      const int64_t batch = std::min<int64_t>(kBatch, ids.size() - from);
      std::vector<RoIRules<A>> rules(batch);
      at::parallel_for(0, batch, 32, [&](int64_t begin, int64_t end) {
        RoIRules<A> direct;
        for (int64_t i = begin; i < end; ++i) {
          const int64_t k = ids[from + i], level = places[k].level;
          build_rules(pooling, roi + 5 * k, level, {maps[level].size(2), maps[level].size(3)},
                      direct);
          rules[i].rows.transpose(direct.rows.view());
          rules[i].cols.transpose(direct.cols.view());
        }
      });
      at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
        std::vector<A> scratch(roi_grad_scratch(pooling.pooled_height, widest));
        for (int64_t b = begin; b < end; ++b) {
          for (int64_t i = 0; i < batch; ++i) {
            const int64_t k = ids[from + i];
            const Tensor& map = maps[places[k].level];
            const int64_t height = map.size(2), width = map.size(3);
            const RoIGradTile<A> tile{rules[i].rows.view(),
                                      rules[i].cols.view(),
                                      channels,
                                      b * block,
                                      std::min((b + 1) * block, channels),
                                      height,
                                      width,
                                      map.mutable_data_ptr<A>() + image * channels * height * width,
                                      pooled + k * channels * bins,
                                      scratch.data()};
            (last ? kernel.backward_channels_last : kernel.backward)(tile);
          }
        }
      });
    }
  }
}

Tensor run_forward(const Pooling& pooling, at::TensorList inputs, const Tensor& rois,
                   Tensor output) {
  if (output.numel() == 0) return output;
  const auto format = inputs[0].suggest_memory_format();
  std::vector<Tensor> maps;
  for (const Tensor& input : inputs) maps.push_back(input.contiguous(format));
  const at::ScalarType type = inputs[0].scalar_type();
  const Tensor wide_rois = rois.to(compute_type(type)).contiguous();
  switch (type) {
    case at::kDouble:
      forward<double>(pooling, maps, wide_rois, output);
      break;
    case at::kHalf:
      forward<Half>(pooling, maps, wide_rois, output);
      break;
    case at::kBFloat16:
      forward<BFloat16>(pooling, maps, wide_rois, output);
      break;
    default:
      forward<float>(pooling, maps, wide_rois, output);
  }
  return output;
}

std::vector<Tensor> run_backward(const Pooling& pooling, const Tensor& grad, const Tensor& rois,
                                 std::vector<Tensor> maps) {
  const at::ScalarType type = grad.scalar_type(), wide = compute_type(type);
  for (Tensor& map : maps) {
    // Sums of many RoIs: not in 16 bits.
    map = wide == type ? map.zero_() : at::zeros_like(map, map.options().dtype(wide));
  }
  if (grad.numel() > 0) {
    const Tensor pooled = grad.to(wide).contiguous(maps[0].suggest_memory_format());
    const Tensor wide_rois = rois.to(wide).contiguous();
    AT_DISPATCH_FLOATING_TYPES(wide, "detops.roi_align_backward",
                               [&] { backward<scalar_t>(pooling, pooled, wide_rois, maps); });
  }
  if (wide != type) {
    for (Tensor& map : maps) map = map.to(type);
  }
  return maps;
}

}  // namespace

Tensor roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                         int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                         bool aligned) {
  Tensor output = meta::roi_align_forward(input, rois, spatial_scale, pooled_height, pooled_width,
                                          sampling_ratio, aligned);
  return run_forward(
      {"roi_align", {spatial_scale}, pooled_height, pooled_width, sampling_ratio, aligned, 0, 0},
      input, rois, std::move(output));
}

Tensor roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                          int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                          int64_t channels, int64_t height, int64_t width, int64_t sampling_ratio,
                          bool aligned) {
  Tensor map =
      meta::roi_align_backward(grad, rois, spatial_scale, pooled_height, pooled_width, batch_size,
                               channels, height, width, sampling_ratio, aligned);
  return run_backward({"roi_align_backward",
                       {spatial_scale},
                       pooled_height,
                       pooled_width,
                       sampling_ratio,
                       aligned,
                       0,
                       0},
                      grad, rois, {std::move(map)})[0];
}

Tensor multiscale_roi_align_forward(at::TensorList inputs, const Tensor& rois,
                                    at::ArrayRef<double> spatial_scales, int64_t pooled_height,
                                    int64_t pooled_width, int64_t sampling_ratio, bool aligned,
                                    double canonical_scale, int64_t canonical_level) {
  Tensor output =
      meta::multiscale_roi_align_forward(inputs, rois, spatial_scales, pooled_height, pooled_width,
                                         sampling_ratio, aligned, canonical_scale, canonical_level);
  return run_forward({"multiscale_roi_align", spatial_scales.vec(), pooled_height, pooled_width,
                      sampling_ratio, aligned, canonical_scale, canonical_level},
                     inputs, rois, std::move(output));
}

std::vector<Tensor> multiscale_roi_align_backward(const Tensor& grad, const Tensor& rois,
                                                  at::ArrayRef<double> spatial_scales,
                                                  int64_t pooled_height, int64_t pooled_width,
                                                  int64_t batch_size, int64_t channels,
                                                  at::IntArrayRef heights, at::IntArrayRef widths,
                                                  int64_t sampling_ratio, bool aligned,
                                                  double canonical_scale, int64_t canonical_level) {
  std::vector<Tensor> maps = meta::multiscale_roi_align_backward(
      grad, rois, spatial_scales, pooled_height, pooled_width, batch_size, channels,
      c10::fromIntArrayRefSlow(heights), c10::fromIntArrayRefSlow(widths), sampling_ratio, aligned,
      canonical_scale, canonical_level);
  return run_backward({"multiscale_roi_align_backward", spatial_scales.vec(), pooled_height,
                       pooled_width, sampling_ratio, aligned, canonical_scale, canonical_level},
                      grad, rois, std::move(maps));
}

}  // namespace detops::cpu
