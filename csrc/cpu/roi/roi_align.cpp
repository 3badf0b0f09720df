// SPDX-License-Identifier: MIT
#include "../common/host.h"
#include "product_taps.h"

#define DETOPS_KERNELS "../roi/roi_align.inl"
#include "linear_pool.h"

// RoIAlign on one map is RoIAlign on a pyramid of one level; both ops are here.
namespace detops::cpu {
namespace {

struct Pooling {
  const char* op;
  std::vector<double> scales;  // one per level
  int64_t sampling_ratio;
  bool aligned;
  double canonical_scale = 0;
  int64_t canonical_level = 0;
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

// RoIs on one level, whose map this is.
template <typename A>
auto sampling_of(const Pooling& pooling, const A* rois, int64_t level, const Tensor& pooled,
                 const Tensor& map) {
  const A scale = static_cast<A>(pooling.scales[level]);
  const auto axis = [&pooling, scale](A low, A high, int64_t bins) {
    return math::roi_axis(low, high, scale, pooling.aligned, bins, pooling.sampling_ratio);
  };
  return BoxSampling{rois, pooled, map, 2, axis};
}

// Most pixels of the map that all bins of a RoI read, where that is fixed.
int64_t taps_of(const Pooling& pooling, const Tensor& pooled) {
  const int64_t of_bin = 4 * pooling.sampling_ratio * pooling.sampling_ratio;
  return pooling.sampling_ratio > 0 && pooling.sampling_ratio <= 4
             ? of_bin * pooled.size(2) * pooled.size(3)
             : INT64_MAX;
}

// Whether RoIs read so little of planes that a plan, or anything for many at once, costs more.
bool direct(const Pooling& pooling, const Tensor& map, const Tensor& pooled) {
  const int64_t channels = map.size(1), pixels = map.size(0) * map.size(2) * map.size(3);
  if (is_channels_last(map) && channels > 1) return false;
  const int64_t taps = taps_of(pooling, pooled);
  return taps <= FewTaps<float>::kMost &&
         (taps * pooled.size(0) <= 4 * pixels || (taps <= 16 && channels <= 16));
}

// RoI by RoI as they come.
template <typename T>
void forward_direct(const Pooling& pooling, TensorList inputs, const Tensor& rois,
                    const Tensor& output) {
  using A = accumulate_t<T>;
  const int64_t count = rois.size(0);
  int64_t widest = taps_of(pooling, output);
  std::vector<PoolTask<ProductTaps<A>, const T, T>> tasks;  // of each level, without a RoI
  for (const Tensor& input : inputs) {
    const auto map = planes_of<const T>(input, 0, false);
    tasks.push_back(pool_task(ProductTaps<A>{}, map.data, map.stride(), map, all_bins(output),
                              planes_of<T>(output, 0, false), 0, 0, nullptr));
    widest = std::max(widest, map.width);
  }
  const A* boxes = rois.const_data_ptr<A>();
  check_batch_indices(pooling.op, boxes, 5, count, inputs[0].size(0));
  const auto pool = DETOPS_IN_USE(pool_planes<T>);
  parallel_for(count, tasks_per_thread(count, output.numel()), [&](int64_t k, int64_t end) {
    FewTaps<A> rows, cols;
    Buffer<A> scratch(widest);
    for (; k < end; ++k) {
      const A* roi = boxes + 5 * k;
      const int64_t level = level_of(pooling, roi);
      auto task = tasks[level];
      const auto [down, across] = sampling_of(pooling, boxes, level, output, inputs[level]).axes(k);
      task.taps = {rows.fill(down, output.size(2), inputs[level].size(2)),
                   cols.fill(across, output.size(3), task.width)};
      task.map += static_cast<int64_t>(roi[0]) * task.channels * task.channel_stride;
      task.pooled += k * task.channels * task.pooled_channel_stride;
      task.scratch = scratch.data();
      pool(task);
    }
  });
}

// Forward where M is const, else backward.
template <typename M, typename P>
void pool_levels(const Pooling& pooling, TensorList maps, const Tensor& rois,
                 const Tensor& pooled) {
  using A = accumulate_t<std::remove_const_t<M>>;
  const A* boxes = rois.const_data_ptr<A>();
  const Plan plan = make_plan(
      pooling.op, boxes, 5, rois.size(0), maps[0].size(0), int64_t(pooling.scales.size()),
      [&](const A* roi) { return level_of(pooling, roi); }, [](const A* roi) { return roi[2]; });
  pool_plan<ProductTable<A>, M, P>(plan, maps, pooled, [&](int64_t level) {
    return sampling_of(pooling, boxes, level, pooled, maps[level]);
  });
}

// From the maps to the pooled RoIs or, not `forward`, from these to the maps.
void run(const Pooling& pooling, TensorList from, const Tensor& rois, bool forward, TensorList to) {
  const auto format = (forward ? from : to)[0].suggest_memory_format();
  const ScalarType type = to[0].scalar_type();
  std::vector<Tensor> sources;
  for (const Tensor& t : from) sources.push_back(in_layout(t, format));
  const Tensor wide_rois = wide(rois, type);
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    if (!forward) {
      pool_levels<T, const T>(pooling, to, wide_rois, sources[0]);
    } else if (direct(pooling, sources[0], to[0])) {
      forward_direct<T>(pooling, sources, wide_rois, to[0]);
    } else {
      pool_levels<const T, T>(pooling, sources, wide_rois, to[0]);
    }
  });
}

}  // namespace

void roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale, int64_t,
                       int64_t, int64_t sampling_ratio, bool aligned, Tensor& output) {
  run({"roi_align", {spatial_scale}, sampling_ratio, aligned}, input, rois, true, output);
}

void roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale, int64_t,
                        int64_t, int64_t, int64_t, int64_t, int64_t, int64_t sampling_ratio,
                        bool aligned, Tensor& map) {
  run({"roi_align_backward", {spatial_scale}, sampling_ratio, aligned}, grad, rois, false, map);
}

void multiscale_roi_align_forward(TensorList inputs, const Tensor& rois,
                                  ArrayRef<double> spatial_scales, int64_t, int64_t,
                                  int64_t sampling_ratio, bool aligned, double canonical_scale,
                                  int64_t canonical_level, Tensor& output) {
  run({"multiscale_roi_align", spatial_scales.vec(), sampling_ratio, aligned, canonical_scale,
       canonical_level},
      inputs, rois, true, output);
}

void multiscale_roi_align_backward(const Tensor& grad, const Tensor& rois,
                                   ArrayRef<double> spatial_scales, int64_t, int64_t, int64_t,
                                   int64_t, IntArrayRef, IntArrayRef, int64_t sampling_ratio,
                                   bool aligned, double canonical_scale, int64_t canonical_level,
                                   std::vector<Tensor>& maps) {
  run({"multiscale_roi_align_backward", spatial_scales.vec(), sampling_ratio, aligned,
       canonical_scale, canonical_level},
      grad, rois, false, maps);
}

}  // namespace detops::cpu
