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

// Numbers of a RoI, and channels, that are done before vectors are on their way.
constexpr int64_t kNumbers = 64, kFewChannels = 4;
// Numbers that one thread adds to the map before others could take rows of it.
constexpr int64_t kAddedBySome = 1 << 19;

// Whether RoIs read so little of planes that a plan, or anything for many at once, costs more.
bool direct(const Pooling& pooling, const Tensor& map, const Tensor& pooled) {
  const int64_t channels = map.size(1), pixels = map.size(0) * map.size(2) * map.size(3);
  if (!in_planes(map)) return false;
  const int64_t taps = taps_of(pooling, pooled);
  return taps <= FewTaps<float>::kMost &&
         (taps * pooled.size(0) <= 4 * pixels || (taps <= 16 && channels <= 16) ||
          taps * channels <= kNumbers);
}

// Numbers that a RoI reads of all channels, at most.
template <typename T, typename A = accumulate_t<T>>
int64_t numbers_of(const Pooling& pooling, TensorList maps, const Tensor& rois,
                   const Tensor& pooled) {
  const int64_t channels = pooled.size(1), high = pooled.size(2), wide = pooled.size(3);
  if (direct(pooling, maps[0], pooled)) return channels * taps_of(pooling, pooled);
  const bool too_many = 4 * channels * high * wide > kNumbers;
  if (pooling.sampling_ratio > 0 || !in_planes(maps[0]) || too_many) return INT64_MAX;
  int64_t most = 0;
  const A* boxes = rois.const_data_ptr<A>();
  for (int64_t k = 0; k < rois.size(0) && most <= kNumbers; ++k) {
    const int64_t level = level_of(pooling, boxes + 5 * k);
    const auto [down, across] = sampling_of(pooling, boxes, level, pooled, maps[level]).axes(k);
    const int64_t rows = high * math::max_pixels(down), cols = wide * math::max_pixels(across);
    const bool fits = rows <= FewTaps<A>::kMost && cols <= FewTaps<A>::kMost;
    most = fits ? std::max(most, channels * rows * cols) : INT64_MAX;
  }
  return most;
}

// Calls visit(k, level, taps) for the RoIs [k, end), whose taps are few.
template <bool merged, typename A, typename Visit>
void visit_rois(const Pooling& pooling, TensorList maps, const A* boxes, const Tensor& pooled,
                int64_t k, int64_t end, const Visit& visit) {
  FewTaps<A> rows, cols;
  for (; k < end; ++k) {
    const int64_t level = level_of(pooling, boxes + 5 * k);
    const Tensor& map = maps[level];
    const auto [down, across] = sampling_of(pooling, boxes, level, pooled, map).axes(k);
    visit(k, level,
          ProductTaps<A>{rows.template fill<merged>(down, pooled.size(2), map.size(2)),
                         cols.template fill<merged>(across, pooled.size(3), map.size(3))});
  }
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
  parallel_for(count, tasks_per_thread(count, output.numel()), [&](int64_t begin, int64_t end) {
    Buffer<A> scratch(widest);
    const auto pool_roi = [&](int64_t k, int64_t level, const ProductTaps<A>& taps) {
      auto task = tasks[level];
      task.taps = taps;
      task.map += static_cast<int64_t>(boxes[5 * k]) * task.channels * task.channel_stride;
      task.pooled += k * task.channels * task.pooled_channel_stride;
      task.scratch = scratch.data();
      pool(task);
    };
    visit_rois<true>(pooling, inputs, boxes, output, begin, end, pool_roi);
  });
}

// The bins of a RoI in all planes of its image, one number after the other. Where M is not const,
// the reverse; adds to the map.
template <typename M, typename P, typename A>
void pool_numbers(const ProductTaps<A>& taps, const Planes<M>& planes, int64_t image, P* bin) {
  const auto &rows = taps.rows, &cols = taps.cols;
  M* plane = planes.data + image * planes.channels * planes.stride();
  for (int64_t c = 0; c < planes.channels; ++c, plane += planes.stride()) {
    for (int64_t ph = 0; ph < rows.pooled; ++ph) {
      for (int64_t pw = 0; pw < cols.pooled; ++pw, ++bin) {
        A sum = 0;
        for (int32_t r = rows.begin[ph]; r < rows.begin[ph + 1]; ++r) {
          M* row = plane + rows.index[r] * planes.width;
          A of_row = 0;
          for (int32_t k = cols.begin[pw]; k < cols.begin[pw + 1]; ++k) {
            if constexpr (std::is_const_v<M>) {
              of_row += cols.weight[k] * math::to_float(row[cols.index[k]]);
            } else {
              row[cols.index[k]] += rows.weight[r] * *bin * cols.weight[k];
            }
          }
          sum += rows.weight[r] * of_row;
        }
        if constexpr (std::is_const_v<M>) math::from_float(sum, *bin);
      }
    }
  }
}

template <bool merged, typename M, typename P>
void pool_by_number(const Pooling& pooling, TensorList maps, const Tensor& rois,
                    const Tensor& pooled) {
  using A = accumulate_t<std::remove_const_t<M>>;
  const A* boxes = rois.const_data_ptr<A>();
  check_batch_indices(pooling.op, boxes, 5, rois.size(0), maps[0].size(0));
  std::vector<Planes<M>> planes;
  for (const Tensor& map : maps) {
    if (!std::is_const_v<M>) map.zero_();
    planes.push_back(planes_of<M>(map, 0, false));
  }
  const auto bins = planes_of<P>(pooled, 0, false);
  const int64_t of_roi = bins.channels * bins.stride(), count = rois.size(0);
  const auto some = [&](int64_t begin, int64_t end) {
    visit_rois<merged>(pooling, maps, boxes, pooled, begin, end,
                       [&](int64_t k, int64_t level, const ProductTaps<A>& taps) {
                         pool_numbers(taps, planes[level], static_cast<int64_t>(boxes[5 * k]),
                                      bins.data + k * of_roi);
                       });
  };
  // Several RoIs add to one pixel.
  if (!std::is_const_v<M>) return some(0, count);
  parallel_for(count, tasks_per_thread(count, pooled.numel()), some);
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

template <typename M, typename P>
void pool_by_number(const Pooling& pooling, TensorList maps, const Tensor& rois,
                    const Tensor& pooled) {
  // With about a sample a pixel most pixels are read twice: merged, there are half as many numbers.
  if (pooling.sampling_ratio > 0) {
    pool_by_number<false, M, P>(pooling, maps, rois, pooled);
  } else {
    pool_by_number<true, M, P>(pooling, maps, rois, pooled);
  }
}

template <typename T>
void pool(const Pooling& pooling, TensorList inputs, const Tensor& rois, const Tensor& output) {
  if (output.size(1) <= kFewChannels && numbers_of<T>(pooling, inputs, rois, output) <= kNumbers) {
    pool_by_number<const T, T>(pooling, inputs, rois, output);
  } else if (direct(pooling, inputs[0], output)) {
    forward_direct<T>(pooling, inputs, rois, output);
  } else {
    pool_levels<const T, T>(pooling, inputs, rois, output);
  }
}

// The reverse.
template <typename T>
void spread(const Pooling& pooling, TensorList maps, const Tensor& rois, const Tensor& grad) {
  if constexpr (std::is_same_v<T, accumulate_t<T>>) {
    const int64_t numbers = numbers_of<T>(pooling, maps, rois, grad);
    if (numbers <= kNumbers && numbers * rois.size(0) <= kAddedBySome) {
      return pool_by_number<T, const T>(pooling, maps, rois, grad);
    }
  }
  pool_levels<T, const T>(pooling, maps, rois, grad);
}

// From the maps to the pooled RoIs or, not `forward`, from these to the maps.
void run(const Pooling& pooling, TensorList from, const Tensor& rois, bool forward, TensorList to) {
  const auto format = (forward ? from : to)[0].suggest_memory_format();
  const ScalarType type = to[0].scalar_type();
  std::vector<Tensor> sources;
  for (const Tensor& t : from) sources.push_back(to_memory_format(t, format));
  const Tensor wide_rois = wide(rois, type);
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    if (forward) {
      pool<T>(pooling, sources, wide_rois, to[0]);
    } else {
      spread<T>(pooling, to, wide_rois, sources[0]);
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
