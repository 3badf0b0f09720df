// SPDX-License-Identifier: MIT
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "../ops.h"
#include "element_type.h"
#include "kernels/roi_align.h"
#include "memory.h"
#include "roi_plan.h"
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

// The plan for a batch of boxes; their level is that of their size.
template <typename A>
Plan plan_of(const Pooling& pooling, const A* rois, int64_t count, int64_t images) {
  const int64_t levels = static_cast<int64_t>(pooling.scales.size());
  const int64_t first_level = std::llround(-std::log2(pooling.scales.front()));
  return make_plan(
      pooling.op, rois, 5, count, images, levels,
      [&](const A* roi) {
        return math::roi_level(roi[1], roi[2], roi[3], roi[4], pooling.canonical_scale,
                               pooling.canonical_level, first_level, levels);
      },
      [](const A* roi) { return roi[2]; });
}

// RoIs [begin, begin + size) of a run with their rules, and what they read of the map.
template <typename A>
struct Batch {
  RoIRules<A> rules;
  int64_t begin = 0, size = 0;
  Footprint footprint;

  Reads reads(int64_t i) const {
    const AxisRule<A> r = rules.rows(i), c = rules.cols(i);
    return {r.first, r.first + r.extent, {c.first, c.first + c.extent}};
  }
};

template <typename A>
void prepare(Batch<A>& batch, const Pooling& pooling, const A* rois, const uint32_t* order,
             const Run& run, int64_t begin, int64_t height, int64_t width, bool transposed) {
  batch.begin = begin;
  batch.size = std::min(run.end - begin, RoIRules<A>::kBatch);
  const A scale = static_cast<A>(pooling.scales[run.level]);
  batch.rules.build(batch.size, height, width, pooling.pooled_height, pooling.pooled_width,
                    transposed, [&](int64_t i, math::RoIAxis<A>& rows, math::RoIAxis<A>& cols) {
                      const A* roi = rois + 5 * int64_t(order[begin + i]);
                      rows = math::roi_axis(roi[2], roi[4], scale, pooling.aligned,
                                            pooling.pooled_height, pooling.sampling_ratio);
                      cols = math::roi_axis(roi[1], roi[3], scale, pooling.aligned,
                                            pooling.pooled_width, pooling.sampling_ratio);
                    });
  batch.footprint = Footprint(height, width);
  for (int64_t i = 0; i < batch.size; ++i) batch.footprint.add(batch.reads(i));
}

// Straight from a channels_last map.
template <typename T>
void forward_direct(const Batch<accumulate_t<T>>& batch, const uint32_t* order,
                    const Planes<const T>& map, int64_t bins, T* output) {
  const auto& kernel = roi_align_kernels<T>();
  const int64_t channels = map.channels;
  const int64_t grain = tasks_per_thread(batch.size, batch.size * channels * bins);
  at::parallel_for(0, batch.size, grain, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      kernel.forward({batch.rules.rows(i), batch.rules.cols(i), map.data, map.width, channels,
                      output + int64_t(order[batch.begin + i]) * channels * bins});
    }
  });
}

template <typename T>
void forward_lanes(const Batch<accumulate_t<T>>& batch, const uint32_t* order,
                   const Planes<const T>& map, int64_t pooled_height, int64_t pooled_width,
                   T* output) {
  using A = accumulate_t<T>;
  const auto& kernel = roi_align_kernels<T>();
  const int64_t channels = map.channels, bins = pooled_height * pooled_width;
  const int64_t widest = batch.footprint.widest();
  const auto make_pool = [&] {
    return [&, pooled = Buffer<A>(bins * kRoIChannels),
            scratch = Buffer<A>(pooled_height * widest * kRoIChannels)](
               int64_t i, int64_t c, int64_t n, RoIWindow<A>& window) mutable {
      kernel.forward_lanes({batch.rules.rows(i), batch.rules.cols(i), window.data(), window.first(),
                            window.columns().begin, window.stride(), scratch.data()},
                           pooled.data());
      const int64_t k = order[batch.begin + i];
      const Planes<T> out{output + k * channels * bins, channels, pooled_height, pooled_width,
                          map.channels_last};
      store_lanes(pooled.data(), out, c, n, 0, 0, bins);
    };
  };
  pool_from_lanes(
      map, {0, map.channels}, batch.footprint, batch.size, batch.size * channels * bins,
      [&](int64_t i) { return batch.reads(i); }, make_pool);
}

template <typename T>
void forward(const Pooling& pooling, const std::vector<Tensor>& inputs, const Tensor& rois,
             Tensor& output) {
  using A = accumulate_t<T>;
  const bool channels_last = is_channels_last(inputs[0]);
  const A* roi = rois.const_data_ptr<A>();
  const Plan plan = plan_of(pooling, roi, rois.size(0), inputs[0].size(0));
  const uint32_t* order = plan.order.data();
  T* out = static_cast<T*>(output.mutable_data_ptr());
  Batch<A> batch;
  for (const Run& run : plan.runs) {
    const auto map = planes_of<const T>(inputs[run.level], run.image, channels_last);
    for (int64_t begin = run.begin; begin < run.end; begin += batch.size) {
      prepare(batch, pooling, roi, order, run, begin, map.height, map.width, false);
      // Straight from the map as long as a RoI's part of it stays in a near cache.
      constexpr int64_t kNear = 1 << 20;
      const int64_t window =
          batch.footprint.positions() / batch.size * map.channels * int64_t(sizeof(T));
      if (channels_last && window < kNear) {
        forward_direct(batch, order, map, pooling.pooled_height * pooling.pooled_width, out);
      } else {
        forward_lanes(batch, order, map, pooling.pooled_height, pooling.pooled_width, out);
      }
    }
  }
}

// Threads own a block of channels: no two write the same element, and each element adds its RoIs in
// the order of the plan, so the bits do not depend on the number of threads.
template <typename T>
void backward(const Pooling& pooling, const Tensor& grad, const Tensor& rois,
              std::vector<Tensor>& maps) {
  using A = accumulate_t<T>;
  const bool channels_last = is_channels_last(maps[0]);
  const int64_t channels = grad.size(1), bins = pooling.pooled_height * pooling.pooled_width;
  const A* roi = rois.const_data_ptr<A>();
  const Plan plan = plan_of(pooling, roi, rois.size(0), maps[0].size(0));
  const auto& kernel = roi_align_kernels<T>();
  Batch<A> batch;
  for (const Run& run : plan.runs) {
    const auto map = planes_of<T>(maps[run.level], run.image, channels_last);
    int64_t begin = run.begin, written = 0;
    do {
      prepare(batch, pooling, roi, plan.order.data(), run, begin, map.height, map.width, true);
      begin += batch.size;
      const int64_t blocks = blocks_of(channels);
      const int64_t outputs = batch.size * channels * bins + channels * map.height * map.width;
      const int64_t grain = tasks_per_thread(blocks, outputs);
      const int64_t written_before = written;
      const Columns columns = batch.footprint.columns();
      at::parallel_for(0, blocks, grain, [&](int64_t block, int64_t last_block) {
        Buffer<A> pooled(bins * kRoIChannels),
            scratch(pooling.pooled_height * batch.footprint.widest() * kRoIChannels);
        for (; block < last_block; ++block) {
          const int64_t c = block * kRoIChannels, n = std::min(kRoIChannels, channels - c);
          GradientRows<T> rows(map, c, n, written_before, columns);
          for (int64_t i = 0; i < batch.size; ++i) {
            const AxisRule<A> row_rule = batch.rules.rows(i), col_rule = batch.rules.cols(i);
            if (row_rule.extent == 0 || col_rule.extent == 0) continue;
            const int64_t k = plan.order[batch.begin + i];
            load_lanes(planes_of<const T>(grad, k, channels_last), c, n, 0, 0, bins, pooled.data());
            RoIWindow<A>& window = rows.reach(row_rule.first, row_rule.first + row_rule.extent);
            kernel.backward_lanes({row_rule, col_rule, window.data(), window.first(), columns.begin,
                                   window.stride(), scratch.data()},
                                  pooled.data());
          }
          const int64_t now = rows.finish(begin == run.end);
          if (block == 0) written = now;
        }
      });
    } while (begin < run.end);
  }
}

Tensor run_forward(const Pooling& pooling, at::TensorList inputs, const Tensor& rois,
                   Tensor output) {
  if (output.numel() == 0) return output;
  expect_writes(output);
  const auto format = inputs[0].suggest_memory_format();
  std::vector<Tensor> maps;
  for (const Tensor& input : inputs) maps.push_back(input.contiguous(format));
  const at::ScalarType type = inputs[0].scalar_type();
  const Tensor wide_rois = wide(rois, type);
  with_element_type(
      type, [&](auto element) { forward<decltype(element)>(pooling, maps, wide_rois, output); });
  return output;
}

std::vector<Tensor> run_backward(const Pooling& pooling, const Tensor& grad, const Tensor& rois,
                                 std::vector<Tensor> maps) {
  const at::ScalarType type = grad.scalar_type();
  const Tensor pooled = grad.contiguous(maps[0].suggest_memory_format());
  const Tensor wide_rois = wide(rois, type);
  for (const Tensor& map : maps) expect_writes(map);
  if (grad.size(1) > 0) {
    with_element_type(
        type, [&](auto element) { backward<decltype(element)>(pooling, pooled, wide_rois, maps); });
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
