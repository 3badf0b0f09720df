// SPDX-License-Identifier: MIT
#include "../../ops.h"
#include "../common/element_type.h"
#include "../common/memory.h"
#include "roi_align_paths.h"

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

// The level of a box is that of its size.
template <typename A>
int64_t level_of(const Pooling& pooling, const A* roi) {
  const int64_t levels = static_cast<int64_t>(pooling.scales.size());
  if (levels == 1) return 0;
  const int64_t first_level = std::llround(-std::log2(pooling.scales.front()));
  return math::roi_level(roi[1], roi[2], roi[3], roi[4], pooling.canonical_scale,
                         pooling.canonical_level, first_level, levels);
}

template <typename A>
Plan plan_of(const Pooling& pooling, const A* rois, int64_t count, int64_t images) {
  return make_plan(
      pooling.op, rois, 5, count, images, static_cast<int64_t>(pooling.scales.size()),
      [&](const A* roi) { return level_of(pooling, roi); }, [](const A* roi) { return roi[2]; });
}

template <typename A>
void axes_of(const Pooling& pooling, const A* roi, int64_t level, math::RoIAxis<A>& rows,
             math::RoIAxis<A>& cols) {
  const A scale = static_cast<A>(pooling.scales[level]);
  rows = math::roi_axis(roi[2], roi[4], scale, pooling.aligned, pooling.pooled_height,
                        pooling.sampling_ratio);
  cols = math::roi_axis(roi[1], roi[3], scale, pooling.aligned, pooling.pooled_width,
                        pooling.sampling_ratio);
}

template <typename A>
void prepare(RoIBatch<A>& batch, const Pooling& pooling, const A* rois, const uint32_t* order,
             const Run& run, int64_t begin, int64_t taps, int64_t height, int64_t width) {
  batch.build(begin, run.end - begin, taps, height, width, pooling.pooled_height,
              pooling.pooled_width, [&](int64_t i, math::RoIAxis<A>& rows, math::RoIAxis<A>& cols) {
                axes_of(pooling, rois + 5 * int64_t(order[begin + i]), run.level, rows, cols);
              });
}

// Most pixels of the map that all bins of a RoI read, where that is fixed.
int64_t taps_of(const Pooling& pooling) {
  const int64_t of_bin = 4 * pooling.sampling_ratio * pooling.sampling_ratio;
  return pooling.sampling_ratio > 0 && pooling.sampling_ratio <= 4
             ? of_bin * pooling.pooled_height * pooling.pooled_width
             : INT64_MAX;
}

// Whether RoIs read so little of planes that a plan, or anything for many at once, costs more.
bool direct(const Pooling& pooling, const std::vector<Tensor>& inputs, int64_t rois) {
  const Tensor& map = inputs[0];
  const int64_t channels = map.size(1), pixels = map.size(0) * map.size(2) * map.size(3);
  if (is_channels_last(inputs[0]) && channels > 1) return false;
  const int64_t taps = taps_of(pooling);
  return taps <= SmallRule<float>::kMost &&
         (taps * rois <= 4 * pixels || (taps <= 16 && channels <= 16));
}

// RoI by RoI as they come.
template <typename T>
void forward_direct(const Pooling& pooling, const std::vector<Tensor>& inputs, const Tensor& rois,
                    Tensor& output) {
  using A = accumulate_t<T>;
  const auto& kernel = roi_align_kernels<T>();
  const int64_t count = rois.size(0), images = inputs[0].size(0);
  const int64_t outputs = output.numel(), each = outputs / count;
  int64_t widest = taps_of(pooling);
  std::vector<Planes<const T>> maps;  // of the first image
  for (const Tensor& input : inputs) {
    maps.push_back(planes_of<const T>(input, 0, false));
    widest = std::max(widest, maps.back().width);
  }
  const A* boxes = rois.const_data_ptr<A>();
  T* pooled = static_cast<T*>(output.mutable_data_ptr());
  parallel_for(0, count, tasks_per_thread(count, outputs), [&](int64_t k, int64_t end) {
    SmallRule<A> rows, cols;
    Buffer<A> scratch(widest);
    for (; k < end; ++k) {
      const A* roi = boxes + 5 * k;
      const int64_t image = image_of(pooling.op, roi, k, images), level = level_of(pooling, roi);
      const Planes<const T>& map = maps[level];
      const int64_t pixels = map.height * map.width;
      math::RoIAxis<A> down, across;
      axes_of(pooling, roi, level, down, across);
      kernel.forward_planes({rows.fill(down, pooling.pooled_height, map.height),
                             cols.fill(across, pooling.pooled_width, map.width),
                             map.data + image * map.channels * pixels, map.width, pixels,
                             map.channels, 1, pooled + k * each, 0, 0, scratch.data()});
    }
  });
}

template <typename T>
void forward(const Pooling& pooling, const std::vector<Tensor>& inputs, const Tensor& rois,
             Tensor& output) {
  using A = accumulate_t<T>;
  if (direct(pooling, inputs, rois.size(0))) {
    return forward_direct<T>(pooling, inputs, rois, output);
  }
  const bool channels_last = is_channels_last(inputs[0]);
  const A* roi = rois.const_data_ptr<A>();
  const Plan plan = plan_of(pooling, roi, rois.size(0), inputs[0].size(0));
  RoIBatch<A> batch;
  for (const Run& run : plan.runs) {
    const auto map = planes_of<const T>(inputs[run.level], run.image, channels_last);
    // Lanes of a channels_last map are less than the copy in NCHW that one would make otherwise.
    const int64_t copy = map.channels * map.height * map.width * int64_t(sizeof(T));
    const int64_t most = scratch_for(std::max<int64_t>(output.nbytes(), channels_last ? copy : 0));
    const PooledRoIs<T> pooled{static_cast<T*>(output.mutable_data_ptr()), plan.order.data(),
                               pooling.pooled_height, pooling.pooled_width};
    for (int64_t begin = run.begin; begin < run.end; begin += batch.size) {
      prepare(batch, pooling, roi, plan.order.data(), run, begin, RoIRules<A>::kMostTaps,
              map.height, map.width);
      switch (path_of(batch, map, pooled.height, pooled.width, false, most)) {
        case RoIPath::kPositions:
          forward_positions(batch, map, pooled);
          break;
        case RoIPath::kPlanes:
          forward_planes(batch, map, pooled);
          break;
        case RoIPath::kLanes:
          forward_lanes(batch, map, pooled);
      }
    }
  }
}

template <typename T>
void backward(const Pooling& pooling, const Tensor& grad, const Tensor& rois,
              std::vector<Tensor>& maps) {
  using A = accumulate_t<T>;
  const bool channels_last = is_channels_last(maps[0]);
  const A* roi = rois.const_data_ptr<A>();
  const Plan plan = plan_of(pooling, roi, rois.size(0), maps[0].size(0));
  const PooledRoIs<const T> pooled{static_cast<const T*>(grad.const_data_ptr()), plan.order.data(),
                                   pooling.pooled_height, pooling.pooled_width};
  RoIBatch<A> batch;
  for (const Run& run : plan.runs) {
    const auto map = planes_of<T>(maps[run.level], run.image, channels_last);
    // One path for all batches of a map: what they leave behind differs.
    const int64_t most = scratch_for(int64_t(maps[run.level].nbytes()));
    // Rules, of 8 bytes a tap and with copies, are to take little beside the map.
    const int64_t taps = std::clamp(int64_t(maps[run.level].nbytes()) / 32, RoIRules<A>::kLeastTaps,
                                    RoIRules<A>::kMostTaps);
    RoIPath path = RoIPath::kPlanes;
    int64_t begin = run.begin, written = 0;
    do {
      prepare(batch, pooling, roi, plan.order.data(), run, begin, taps, map.height, map.width);
      const bool first = begin == run.begin;
      begin += batch.size;
      if (first) path = path_of(batch, map, pooled.height, pooled.width, true, most);
      if (path == RoIPath::kLanes) {
        written = backward_lanes(batch, map, pooled, written, begin == run.end);
      } else {
        backward_in_place(batch, map, pooled, path, first);
      }
    } while (begin < run.end);
  }
}

void run_forward(const Pooling& pooling, TensorList inputs, const Tensor& rois, Tensor& output) {
  expect_writes(output);
  const auto format = inputs[0].suggest_memory_format();
  std::vector<Tensor> maps;
  for (const Tensor& input : inputs) maps.push_back(input.contiguous(format));
  const ScalarType type = inputs[0].scalar_type();
  const Tensor wide_rois = wide(rois, type);
  with_element_type(
      type, [&](auto element) { forward<decltype(element)>(pooling, maps, wide_rois, output); });
}

void run_backward(const Pooling& pooling, const Tensor& grad, const Tensor& rois,
                  std::vector<Tensor>& maps) {
  const ScalarType type = grad.scalar_type();
  const Tensor pooled = in_layout(grad, maps[0].suggest_memory_format());
  const Tensor wide_rois = wide(rois, type);
  for (const Tensor& map : maps) expect_writes(map);
  with_element_type(
      type, [&](auto element) { backward<decltype(element)>(pooling, pooled, wide_rois, maps); });
}

}  // namespace

void roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                       int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                       bool aligned, Tensor& output) {
  run_forward(
      {"roi_align", {spatial_scale}, pooled_height, pooled_width, sampling_ratio, aligned, 0, 0},
      input, rois, output);
}

void roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                        int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                        int64_t channels, int64_t height, int64_t width, int64_t sampling_ratio,
                        bool aligned, Tensor& map) {
  std::vector<Tensor> maps{map};
  run_backward({"roi_align_backward",
                {spatial_scale},
                pooled_height,
                pooled_width,
                sampling_ratio,
                aligned,
                0,
                0},
               grad, rois, maps);
}

void multiscale_roi_align_forward(TensorList inputs, const Tensor& rois,
                                  ArrayRef<double> spatial_scales, int64_t pooled_height,
                                  int64_t pooled_width, int64_t sampling_ratio, bool aligned,
                                  double canonical_scale, int64_t canonical_level, Tensor& output) {
  run_forward({"multiscale_roi_align", spatial_scales.vec(), pooled_height, pooled_width,
               sampling_ratio, aligned, canonical_scale, canonical_level},
              inputs, rois, output);
}

void multiscale_roi_align_backward(const Tensor& grad, const Tensor& rois,
                                   ArrayRef<double> spatial_scales, int64_t pooled_height,
                                   int64_t pooled_width, int64_t batch_size, int64_t channels,
                                   IntArrayRef heights, IntArrayRef widths, int64_t sampling_ratio,
                                   bool aligned, double canonical_scale, int64_t canonical_level,
                                   std::vector<Tensor>& maps) {
  run_backward({"multiscale_roi_align_backward", spatial_scales.vec(), pooled_height, pooled_width,
                sampling_ratio, aligned, canonical_scale, canonical_level},
               grad, rois, maps);
}

}  // namespace detops::cpu
