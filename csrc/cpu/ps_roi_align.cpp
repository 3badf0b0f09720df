// SPDX-License-Identifier: MIT
#include <ATen/Parallel.h>

#include "../math/roi_pool.h"
#include "../ops.h"
#include "element_type.h"
#include "kernels/ps_roi_align.h"
#include "memory.h"
#include "roi_plan.h"

// "R-FCN" (Dai et al., 2016), section 2: bin (ph, pw) of channel c reads channel
// (c * pooled_height + ph) * pooled_width + pw of the map alone. PSRoIAlign and PSRoIPool differ in
// their rules of an axis only; both ops are here.
namespace detops::cpu {
namespace {

struct Pooling {
  const char* op;
  double scale;
  int64_t pooled_height, pooled_width, sampling_ratio;
  bool align;

  int64_t bins() const { return pooled_height * pooled_width; }
};

// See PSTaps.
template <typename A>
class TapStorage {
 public:
  PSTaps<A> view() const { return {begin_.data(), index_.data(), weight_.data()}; }

  // Bin p of all axes on a map `size` long; taps of `lanes` positions.
  template <typename Axis>
  void build(const std::vector<Axis>& axes, int64_t p, int64_t size, int64_t lanes) {
    begin_.assign(1, 0);
    begin_.reserve(axes.size() + 1);
    for (const Axis& axis : axes) {
      math::visit_taps(axis, p, size,
                       [&](int64_t index, A weight) { add(index, weight, lanes, size); });
      begin_.push_back(static_cast<int64_t>(index_.size()));
    }
  }

 private:
  // Positions advance steadily, so that one seen before is in one of the last two taps.
  void add(int64_t index, A weight, int64_t lanes, int64_t size) {
    const int64_t end = static_cast<int64_t>(index_.size());
    for (int64_t i = end - 1; i >= std::max(end - 2, begin_.back()); --i) {
      const int64_t lane = index - index_[i];
      if (lane >= 0 && lane < lanes) {
        weight_[i * lanes + lane] += weight;
        return;
      }
    }
    const int64_t first = std::min(index, std::max<int64_t>(0, size - lanes));
    index_.push_back(static_cast<int32_t>(first));
    weight_.resize(weight_.size() + lanes, A(0));
    weight_[end * lanes + index - first] = weight;
  }

  std::vector<int64_t> begin_;
  std::vector<int32_t> index_;
  std::vector<A> weight_;
};

// The rules of all RoIs of a run, bin by bin.
template <typename A>
class Rules {
 public:
  Rules(const Pooling& pooling, const A* rois, const uint32_t* order, int64_t count, int64_t height,
        int64_t width, int64_t lanes)
      : rows_(pooling.pooled_height), cols_(pooling.pooled_width) {
    const A scale = static_cast<A>(pooling.scale);
    const auto build = [&](const auto& axis_of) {
      using Axis = decltype(axis_of(A(), A(), int64_t()));
      const int64_t ph = pooling.pooled_height, pw = pooling.pooled_width;
      std::vector<Axis> rows(count), cols(count);
      at::parallel_for(0, count, 1024, [&](int64_t i, int64_t end) {
        for (; i < end; ++i) {
          const A* roi = rois + 5 * int64_t(order[i]);
          rows[i] = axis_of(roi[2], roi[4], ph);
          cols[i] = axis_of(roi[1], roi[3], pw);
        }
      });
      at::parallel_for(0, ph + pw, 1, [&](int64_t p, int64_t end) {
        for (; p < std::min(end, ph); ++p) rows_[p].build(rows, p, height, 1);
        for (; p < end; ++p) cols_[p - ph].build(cols, p - ph, width, lanes);
      });
    };
    if (pooling.align) {
      build([&](A low, A high, int64_t pooled) {
        return math::roi_axis(low, high, scale, true, pooled, pooling.sampling_ratio);
      });
    } else {
      build([&](A low, A high, int64_t pooled) {
        return math::pool_axis(low, high, scale, 0, pooled);
      });
    }
  }

  PSTaps<A> rows(int64_t ph) const { return rows_[ph].view(); }
  PSTaps<A> cols(int64_t pw) const { return cols_[pw].view(); }

 private:
  std::vector<TapStorage<A>> rows_, cols_;
};

// A task is a block of neighbouring bins of up to kPSPlanes channels.
struct Task {
  int64_t group, groups;  // channels [group, group + groups) of the output
  int64_t bin, bins;
};

// Blocks are no larger than kRoIChannels, since copies go through lanes.
struct Tasks {
  int64_t groups, bins;

  int64_t blocks() const { return blocks_of(bins); }
  int64_t size() const { return (groups + kPSPlanes - 1) / kPSPlanes * blocks(); }
  Task operator[](int64_t i) const {
    const int64_t group = i / blocks() * kPSPlanes, block = i % blocks();
    const int64_t begin = block * kRoIChannels, end = std::min(bins, begin + kRoIChannels);
    return {group, std::min(kPSPlanes, groups - group), begin, end - begin};
  }
};

// Copies of a task's planes, [bins, groups, H * W]: of a channels_last map, or of one
// whose numbers are too short to be summed in place.
template <typename T>
class PlaneCopies {
 public:
  using A = accumulate_t<T>;

  void reserve(const Task& task, int64_t pixels) {
    pixels_ = pixels;
    groups_ = task.groups;
    planes_.reserve(task.bins * task.groups * pixels);
  }

  A* plane(int64_t bin, int64_t group) {
    return planes_.data() + (bin * groups_ + group) * pixels_;
  }

  void load(const Planes<const T>& map, const Task& task, int64_t bins) {
    for (int64_t g = 0; g < task.groups; ++g) {
      const int64_t c = (task.group + g) * bins + task.bin;
      // More than are wanted: parts of a vector cost more to load.
      const int64_t n = std::min(kRoIChannels, map.channels - c);
      for_each_part([&](int64_t first, int64_t count, A* lanes) {
        load_lanes(map, c, n, 0, first, count, lanes);
        roi_align_kernels<A>().lanes_to_planes(lanes, groups_ * pixels_, task.bins, count,
                                               plane(0, g) + first);
      });
    }
  }

  void store(const Planes<T>& map, const Task& task, int64_t bins) {
    for (int64_t g = 0; g < task.groups; ++g) {
      for_each_part([&](int64_t first, int64_t count, A* lanes) {
        roi_align_kernels<A>().planes_to_lanes(plane(0, g) + first, groups_ * pixels_, task.bins,
                                               count, lanes);
        store_lanes(lanes, map, (task.group + g) * bins + task.bin, task.bins, 0, first, count);
      });
    }
  }

 private:
  // Lanes pass through a buffer that stays in the nearest cache.
  template <typename Part>
  void for_each_part(const Part& part) {
    constexpr int64_t kPart = 128;
    lanes_.reserve(kPart * kRoIChannels);
    for (int64_t first = 0; first < pixels_; first += kPart) {
      part(first, std::min(kPart, pixels_ - first), lanes_.data());
    }
  }

  Buffer<A> planes_, lanes_;
  int64_t groups_ = 0, pixels_ = 0;
};

template <typename T>
void forward(const Pooling& pooling, const Tensor& input, const Tensor& rois, Tensor& output) {
  using A = accumulate_t<T>;
  const auto& kernel = ps_roi_align_kernels<T>();
  const bool channels_last = is_channels_last(input);
  const A* roi = rois.const_data_ptr<A>();
  const Plan plan = make_plan(pooling.op, roi, rois.size(0), input.size(0));
  const int64_t groups = output.size(1), bins = pooling.bins();
  const Tasks tasks{groups, bins};
  T* out = static_cast<T*>(output.mutable_data_ptr());
  for (const Run& run : plan.runs) {
    const int64_t count = run.end - run.begin;
    if (count == 0) continue;
    const auto map = planes_of<const T>(input, run.image, channels_last);
    const int64_t pixels = map.height * map.width;
    const uint32_t* order = plan.order.data() + run.begin;
    const Rules<A> rules(pooling, roi, order, count, map.height, map.width, kernel.columns);
    const int64_t work = groups * bins * (count + (channels_last ? pixels : 0));
    at::parallel_for(
        0, tasks.size(), tasks_per_thread(tasks.size(), work), [&](int64_t i, int64_t end) {
          PlaneCopies<T> copies;
          for (; i < end; ++i) {
            const Task task = tasks[i];
            if (channels_last) {
              copies.reserve(task, pixels);
              copies.load(map, task, bins);
            }
            for (int64_t b = 0; b < task.bins; ++b) {
              const int64_t bin = task.bin + b;
              const auto rows = rules.rows(bin / pooling.pooled_width);
              const auto cols = rules.cols(bin % pooling.pooled_width);
              if (channels_last) {
                kernel.forward_copy({rows, cols, order, count, copies.plane(b, 0), task.groups,
                                     pixels, map.width, out + bin * groups + task.group,
                                     groups * bins, 1});
              } else {
                kernel.forward({rows, cols, order, count, map.at(task.group * bins + bin, 0, 0),
                                task.groups, bins * pixels, map.width,
                                out + task.group * bins + bin, groups * bins, bins});
              }
            }
          }
        });
  }
}

// Threads own planes: no two write the same element, and each element adds its RoIs in the order of
// the plan, so the bits do not depend on the number of threads.
template <typename T>
void backward(const Pooling& pooling, const Tensor& grad, const Tensor& rois, Tensor& maps) {
  using A = accumulate_t<T>;
  const auto& kernel = ps_roi_align_kernels<T>();
  const bool channels_last = is_channels_last(maps);
  const bool in_place = !channels_last && std::is_same_v<T, A>;
  const A* roi = rois.const_data_ptr<A>();
  const Plan plan = make_plan(pooling.op, roi, rois.size(0), maps.size(0));
  const int64_t groups = grad.size(1), bins = pooling.bins();
  const Tasks tasks{groups, bins};
  const T* pooled = static_cast<const T*>(grad.const_data_ptr());
  for (const Run& run : plan.runs) {
    const int64_t count = run.end - run.begin;
    const auto map = planes_of<T>(maps, run.image, channels_last);
    const int64_t pixels = map.height * map.width;
    const uint32_t* order = plan.order.data() + run.begin;
    const Rules<A> rules(pooling, roi, order, count, map.height, map.width, kernel.columns);
    const int64_t work = groups * bins * (count + pixels);
    at::parallel_for(
        0, tasks.size(), tasks_per_thread(tasks.size(), work), [&](int64_t i, int64_t end) {
          PlaneCopies<T> copies;
          for (; i < end; ++i) {
            const Task task = tasks[i];
            if (!in_place) copies.reserve(task, pixels);
            for (int64_t b = 0; b < task.bins; ++b) {
              const int64_t bin = task.bin + b;
              A* planes = copies.plane(b, 0);
              int64_t stride = pixels;
              if constexpr (std::is_same_v<T, A>) {
                if (in_place)
                  planes = map.at(task.group * bins + bin, 0, 0), stride = bins * pixels;
              }
              for (int64_t g = 0; g < task.groups; ++g) {
                std::fill_n(planes + g * stride, pixels, A(0));
              }
              const T* from =
                  pooled + (channels_last ? bin * groups + task.group : task.group * bins + bin);
              kernel.backward({rules.rows(bin / pooling.pooled_width),
                               rules.cols(bin % pooling.pooled_width), order, count, planes,
                               task.groups, stride, map.width, from, groups * bins,
                               channels_last ? 1 : bins});
            }
            if (!in_place) copies.store(map, task, bins);
          }
        });
  }
}

Tensor run_forward(const Pooling& pooling, const Tensor& input, const Tensor& rois, Tensor output) {
  if (output.numel() == 0) return output;
  expect_writes(output);
  const at::ScalarType type = input.scalar_type();
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor wide_rois = wide(rois, type);
  with_element_type(
      type, [&](auto element) { forward<decltype(element)>(pooling, maps, wide_rois, output); });
  return output;
}

Tensor run_backward(const Pooling& pooling, const Tensor& grad, const Tensor& rois, Tensor maps) {
  if (maps.numel() == 0) return maps;
  expect_writes(maps);
  const at::ScalarType type = grad.scalar_type();
  const Tensor pooled = grad.contiguous(maps.suggest_memory_format());
  const Tensor wide_rois = wide(rois, type);
  with_element_type(
      type, [&](auto element) { backward<decltype(element)>(pooling, pooled, wide_rois, maps); });
  return maps;
}

}  // namespace

Tensor ps_roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                            int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio) {
  Tensor output = meta::ps_roi_align_forward(input, rois, spatial_scale, pooled_height,
                                             pooled_width, sampling_ratio);
  return run_forward(
      {"ps_roi_align", spatial_scale, pooled_height, pooled_width, sampling_ratio, true}, input,
      rois, std::move(output));
}

Tensor ps_roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                             int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                             int64_t channels, int64_t height, int64_t width,
                             int64_t sampling_ratio) {
  Tensor maps = meta::ps_roi_align_backward(grad, rois, spatial_scale, pooled_height, pooled_width,
                                            batch_size, channels, height, width, sampling_ratio);
  return run_backward(
      {"ps_roi_align_backward", spatial_scale, pooled_height, pooled_width, sampling_ratio, true},
      grad, rois, std::move(maps));
}

Tensor ps_roi_pool_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                           int64_t pooled_height, int64_t pooled_width) {
  Tensor output =
      meta::ps_roi_pool_forward(input, rois, spatial_scale, pooled_height, pooled_width);
  return run_forward({"ps_roi_pool", spatial_scale, pooled_height, pooled_width, 0, false}, input,
                     rois, std::move(output));
}

Tensor ps_roi_pool_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                            int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                            int64_t channels, int64_t height, int64_t width) {
  Tensor maps = meta::ps_roi_pool_backward(grad, rois, spatial_scale, pooled_height, pooled_width,
                                           batch_size, channels, height, width);
  return run_backward(
      {"ps_roi_pool_backward", spatial_scale, pooled_height, pooled_width, 0, false}, grad, rois,
      std::move(maps));
}

}  // namespace detops::cpu
