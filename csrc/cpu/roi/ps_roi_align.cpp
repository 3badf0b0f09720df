// SPDX-License-Identifier: MIT
#include "../../ops.h"
#include "../common/element_type.h"
#include "../common/memory.h"
#include "ps_taps.h"
#include "roi_plan.h"

#define DETOPS_KERNELS "../roi/ps_roi_align.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

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

// Copies of a task's planes of a channels_last map, [bins, groups, H * W].
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
        const Planes<A> copy{plane(0, g), task.bins, 1, pixels_, false, groups_};
        store_lanes(lanes, copy, 0, task.bins, 0, first, count);
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

// Planes of so few pixels are near in any order of the RoIs.
constexpr int64_t kNearPixels = 4096;

template <typename A>
Plan plan_of(const PSPooling& pooling, const A* rois, int64_t count, const Tensor& maps) {
  const int64_t images = maps.size(0);
  if (images != 1 || maps.size(2) * maps.size(3) > kNearPixels) {
    return make_plan(pooling.op, rois, count, images);
  }
  check_batch_indices(pooling.op, rois, 5, count, images);
  Plan plan{Buffer<uint32_t>(count), {{0, 0, 0, count}}};
  for (int64_t i = 0; i < count; ++i) plan.order[i] = static_cast<uint32_t>(i);
  return plan;
}

// Whether RoIs read a channels_last map as it is, for so few positions that it costs less than
// copies of the planes. In cycles, rounded from measurements.
template <typename A>
bool reads_positions(const PSPlaneTaps<A>& taps, int64_t groups, int64_t bins, int64_t pixels) {
  const double positions = taps.positions(), n = double(groups);
  const double direct = positions * (bins == 1 ? 4 + n / 2 : 8 * n);
  const double copy = 16 * double(pixels) * n * double(blocks_of(bins));
  return direct < copy + positions * n / 4;
}

// RoIs in blocks, bin by bin: the bins of a RoI read neighbours of what the one before has read.
template <typename T>
void forward_positions(const PSPlaneTaps<accumulate_t<T>>& taps, const PSPooling& pooling,
                       const uint32_t* order, int64_t count, const Planes<const T>& map,
                       int64_t groups, T* out) {
  constexpr int64_t kBlock = 4;
  const int64_t bins = pooling.bins(), blocks = (count + kBlock - 1) / kBlock;
  const int64_t grain = tasks_per_thread(blocks, groups * bins * count);
  parallel_for(0, blocks, grain, [&](int64_t block, int64_t end) {
    for (; block < end; ++block) {
      const int64_t first = block * kBlock, n = std::min(kBlock, count - first);
      for (int64_t bin = 0; bin < bins; ++bin) {
        DETOPS_NARROW_IN_USE(ps_roi_align_forward_positions<T>)(
            {taps.rows(bin / pooling.pooled_width).from(first),
             taps.cols(bin % pooling.pooled_width).from(first), order + first, n, map.at(bin, 0, 0),
             groups, bins, map.width, out + bin * groups, groups * bins, 1, 0, map.channels});
      }
    }
  });
}

template <typename T>
void forward(const PSPooling& pooling, const Tensor& input, const Tensor& rois, Tensor& output) {
  using A = accumulate_t<T>;
  const bool channels_last = is_channels_last(input);
  const A* roi = rois.const_data_ptr<A>();
  const Plan plan = plan_of(pooling, roi, rois.size(0), input);
  const int64_t groups = output.size(1), bins = pooling.bins();
  const Tasks tasks{groups, bins};
  T* out = static_cast<T*>(output.mutable_data_ptr());
  for (const Run& run : plan.runs) {
    const int64_t count = run.end - run.begin;
    if (count == 0) continue;
    const auto map = planes_of<const T>(input, run.image, channels_last);
    const int64_t pixels = map.height * map.width;
    const uint32_t* order = plan.order.data() + run.begin;
    const PSPlaneTaps<A> taps(pooling, roi, order, count, map.height, map.width,
                              DETOPS_NARROW_IN_USE(kLanes<A>));
    if (channels_last && reads_positions(taps, groups, bins, pixels)) {
      forward_positions(taps, pooling, order, count, map, groups, out);
      continue;
    }
    const int64_t work = groups * bins * (count + (channels_last ? pixels : 0));
    parallel_for(
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
              const auto rows = taps.rows(bin / pooling.pooled_width);
              const auto cols = taps.cols(bin % pooling.pooled_width);
              if (channels_last) {
                DETOPS_NARROW_IN_USE(ps_roi_align_forward<A, T>)(
                    {rows, cols, order, count, copies.plane(b, 0), task.groups, pixels, map.width,
                     out + bin * groups + task.group, groups * bins, 1});
              } else {
                DETOPS_NARROW_IN_USE(ps_roi_align_forward<T, T>)(
                    {rows, cols, order, count, map.at(task.group * bins + bin, 0, 0), task.groups,
                     bins * pixels, map.width, out + task.group * bins + bin, groups * bins, bins});
              }
            }
          }
        });
  }
}

// Planes that one bin adds to: rows that no RoI reaches become zero, and where numbers are too
// short to be summed in place, as many planes at a time as stay near are summed elsewhere. `fresh`:
// nothing is on the map yet, not even zeros.
template <typename T>
void add_bin(const PSPlaneTaps<accumulate_t<T>>& taps, const PSPooling& pooling, int64_t bin,
             PixelRange reach, const uint32_t* order, int64_t count, const Planes<T>& maps,
             const Task& task, const T* pooled, bool fresh, GradientBand<T>& band) {
  using A = accumulate_t<T>;
  constexpr bool kInPlace = std::is_same_v<T, A>;
  const int64_t bins = pooling.bins(), width = maps.width, pixels = maps.height * width;
  const Planes<T> map{maps.at(bin, 0, 0), maps.channels / bins, maps.height, width, false, bins};
  const int64_t bytes = std::max<int64_t>(1, (reach.end - reach.begin) * width) * sizeof(A);
  const int64_t most = kInPlace ? kPSPlanes : kNearCache / bytes;
  const int64_t step = std::clamp<int64_t>(most, 1, task.groups), end = task.group + task.groups;
  for (int64_t group = task.group; group < end; group += step) {
    const int64_t n = std::min(step, end - group);
    if (fresh) {  // a plane in one go where its sums grow on it
      clear_positions(map, group, n, 0, kInPlace ? pixels : reach.begin * width);
      if (!kInPlace) clear_positions(map, group, n, reach.end * width, pixels);
    }
    if (reach.begin == reach.end) continue;
    A* sums = band.open(map, group, n, reach.begin, reach.end, fresh && !kInPlace);
    DETOPS_NARROW_IN_USE(ps_roi_align_backward<A, T>)(
        {taps.rows(bin / pooling.pooled_width), taps.cols(bin % pooling.pooled_width), order, count,
         sums, n, band.plane_stride(), width, pooled + group * bins + bin, maps.channels, bins,
         reach.begin});
    band.close();
  }
}

// Threads own planes, or rows: no two write the same element, and each element adds its RoIs in the
// order of the plan, so the bits do not depend on the number of threads.
template <typename T>
void backward_planes(const PSPooling& pooling, const Tensor& grad, const Tensor& rois,
                     Tensor& maps) {
  using A = accumulate_t<T>;
  const A* roi = rois.const_data_ptr<A>();
  const Plan plan = plan_of(pooling, roi, rois.size(0), maps);
  const int64_t groups = grad.size(1), bins = pooling.bins();
  const Tasks tasks{groups, bins};
  const T* pooled = static_cast<const T*>(grad.const_data_ptr());
  for (const Run& run : plan.runs) {
    const int64_t count = run.end - run.begin;
    const auto map = planes_of<T>(maps, run.image, false);
    const uint32_t* order = plan.order.data() + run.begin;
    const PSPlaneTaps<A> taps(pooling, roi, order, count, map.height, map.width,
                              DETOPS_NARROW_IN_USE(kLanes<A>));
    std::vector<PixelRange> reaches;
    for (int64_t ph = 0; ph < pooling.pooled_height; ++ph) {
      reaches.push_back(taps.reach(ph, map.height));
    }
    const int64_t pixels = map.height * map.width, work = groups * bins * (count + pixels);
    const int64_t grain = tasks_per_thread(tasks.size(), work);
    // Zeros are written fastest in one go; the planes of many sums are better near when those come.
    const bool fresh = !std::is_same_v<T, A> || 32 * taps.positions() > double(bins * pixels);
    if (!fresh) {
      parallel_for(
          0, map.channels, tasks_per_thread(map.channels, work),
          [&](int64_t c, int64_t end) { std::fill(map.at(c, 0, 0), map.at(end, 0, 0), T{}); });
    }
    parallel_for(0, tasks.size(), grain, [&](int64_t i, int64_t end) {
      GradientBand<T> band;
      for (; i < end; ++i) {
        const Task task = tasks[i];
        for (int64_t bin = task.bin; bin < task.bin + task.bins; ++bin) {
          add_bin(taps, pooling, bin, reaches[bin / pooling.pooled_width], order, count, map, task,
                  pooled, fresh, band);
        }
      }
    });
  }
}

// One row of a channels_last map, number by number, for what few bins add to it.
template <typename T>
void add_to_row(const PSReach<accumulate_t<T>>* reaches, int64_t count,
                const PSTaps<accumulate_t<T>>& cols, const uint32_t* order, int64_t pooled_width,
                int64_t bins, int64_t groups, const T* pooled, accumulate_t<T>* sums) {
  using A = accumulate_t<T>;
  for (int64_t i = 0; i < count; ++i) {
    const PSReach<A> reach = reaches[i];
    for (int64_t pw = 0; pw < pooled_width; ++pw) {
      const int64_t bin = reach.ph * pooled_width + pw;
      const T* grad = pooled + (order[reach.roi] * bins + bin) * groups;
      const int64_t* tap = cols.begin + reach.roi * pooled_width + pw;
      for (int64_t k = tap[0]; k < tap[1]; ++k) {
        const A weight = reach.weight * cols.weight[k];
        A* to = sums + cols.index[k] * groups * bins + bin;
        for (int64_t g = 0; g < groups; ++g) to[g * bins] += weight * A(math::to_float(grad[g]));
      }
    }
  }
}

// Row by row of a channels_last map: sums grow on the row, or where many bins reach it in lanes,
// [column, bin, kPSLanes], which are transposed to the row's channels.
template <typename T>
void backward_rows(const PSPooling& pooling, const Tensor& grad, const Tensor& rois, Tensor& maps) {
  using A = accumulate_t<T>;
  const A* roi = rois.const_data_ptr<A>();
  const Plan plan = plan_of(pooling, roi, rois.size(0), maps);
  const int64_t groups = grad.size(1), bins = pooling.bins();
  const int64_t blocks = (groups + kPSLanes - 1) / kPSLanes;
  const T* pooled = static_cast<const T*>(grad.const_data_ptr());
  for (const Run& run : plan.runs) {
    const int64_t count = run.end - run.begin;
    const auto map = planes_of<T>(maps, run.image, true);
    const uint32_t* order = plan.order.data() + run.begin;
    const PSRowTaps<A> taps(pooling, roi, order, count, map.height, map.width);
    const int64_t work = groups * bins * (count + map.height * map.width);
    // A number alone costs about three cycles, a position in lanes eight.
    const int64_t lanes_cost = 8 * map.width * bins * blocks;
    const int64_t reach_cost =
        count == 0 ? 0 : 3 * groups * taps.cols().begin[count * pooling.pooled_width] / count;
    parallel_for(0, map.height, tasks_per_thread(map.height, work), [&](int64_t y, int64_t end) {
      Buffer<A> sums;
      GradientBand<T> band;
      for (; y < end; ++y) {
        if (taps.count(y) == 0) {
          clear_positions(map, 0, map.channels, y * map.width, (y + 1) * map.width);
          continue;
        }
        if (taps.count(y) * reach_cost < lanes_cost) {
          A* row = band.open(map, 0, map.channels, y, y + 1, true);
          add_to_row(taps.begin(y), taps.count(y), taps.cols(), order, pooling.pooled_width, bins,
                     groups, pooled, row);
          band.close();
          continue;
        }
        sums.reserve(map.width * bins * kPSLanes);
        for (int64_t block = 0; block < blocks; ++block) {
          const int64_t group = groups * block / blocks;
          const int64_t n = groups * (block + 1) / blocks - group;
          DETOPS_IN_USE(ps_roi_rows_backward<T>)(
              {taps.begin(y), taps.count(y), taps.cols(), order, pooling.pooled_width, bins,
               pooled + group, groups, n, map.width, sums.data(), map.at(group * bins, y, 0)});
        }
      }
    });
  }
}

void run_forward(const PSPooling& pooling, const Tensor& input, const Tensor& rois,
                 Tensor& output) {
  expect_writes(output);
  const ScalarType type = input.scalar_type();
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor wide_rois = wide(rois, type);
  with_element_type(
      type, [&](auto element) { forward<decltype(element)>(pooling, maps, wide_rois, output); });
}

void run_backward(const PSPooling& pooling, const Tensor& grad, const Tensor& rois, Tensor& maps) {
  expect_writes(maps);
  const ScalarType type = grad.scalar_type();
  const Tensor pooled = in_layout(grad, maps.suggest_memory_format());
  const Tensor wide_rois = wide(rois, type);
  with_element_type(type, [&](auto element) {
    const auto run = is_channels_last(maps) ? backward_rows<decltype(element)>
                                            : backward_planes<decltype(element)>;
    run(pooling, pooled, wide_rois, maps);
  });
}

}  // namespace

void ps_roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                          int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                          Tensor& output) {
  run_forward({"ps_roi_align", spatial_scale, pooled_height, pooled_width, sampling_ratio, true},
              input, rois, output);
}

void ps_roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                           int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                           int64_t channels, int64_t height, int64_t width, int64_t sampling_ratio,
                           Tensor& map) {
  run_backward(
      {"ps_roi_align_backward", spatial_scale, pooled_height, pooled_width, sampling_ratio, true},
      grad, rois, map);
}

void ps_roi_pool_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                         int64_t pooled_height, int64_t pooled_width, Tensor& output) {
  run_forward({"ps_roi_pool", spatial_scale, pooled_height, pooled_width, 0, false}, input, rois,
              output);
}

void ps_roi_pool_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                          int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                          int64_t channels, int64_t height, int64_t width, Tensor& map) {
  run_backward({"ps_roi_pool_backward", spatial_scale, pooled_height, pooled_width, 0, false}, grad,
               rois, map);
}

}  // namespace detops::cpu
