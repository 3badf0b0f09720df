// SPDX-License-Identifier: MIT
#include "../common/host.h"
#include "ps_taps.h"
#include "roi_plan.h"

#define DETOPS_KERNELS "../roi/ps_roi_align.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

int64_t plane_blocks(int64_t planes) { return divide_up(planes, kPSPlanes); }

// RoIs in blocks, bin by bin: the bins of a RoI read neighbours of what the one before has read.
template <typename T, typename A = accumulate_t<T>>
void forward_positions(const PSRun<A>& run, const PSPlaneTaps<A>& taps, const Planes<const T>& map,
                       T* out) {
  constexpr int64_t kBlock = 4;
  const int64_t bins = run.pooling.bins(), groups = map.channels / bins;
  const int64_t blocks = divide_up(run.count, kBlock);
  const int64_t grain = tasks_per_thread(blocks, map.channels * run.count);
  parallel_each(blocks, grain, [&](int64_t block) {
    const int64_t first = block * kBlock, n = std::min(kBlock, run.count - first);
    for (int64_t bin = 0; bin < bins; ++bin) {
      DETOPS_NARROW_IN_USE(ps_roi_align_forward_positions<T>)(
          {taps.rows(bin).from(first), taps.cols(bin).from(first), run.order + first, n,
           map.at(bin, 0, 0), groups, bins, map.width, out + bin * groups, map.channels, 1,
           map.channels});
    }
  });
}

// Copies planes of a channels_last map, [bins, n, H * W], for up to kRoIChannels bins and kPSPlanes
// channels at a time. Lanes pass through a buffer that stays in the nearest cache.
template <typename T, typename A = accumulate_t<T>>
void forward_copies(const PSRun<A>& run, const PSPlaneTaps<A>& taps, const Planes<const T>& map,
                    T* out) {
  constexpr int64_t kPart = 128;
  const int64_t bins = run.pooling.bins(), groups = map.channels / bins, blocks = blocks_of(bins);
  const int64_t tasks = plane_blocks(groups) * blocks, pixels = map.height * map.width;
  const int64_t grain = tasks_per_thread(tasks, map.channels * (run.count + pixels));
  parallel_for(tasks, grain, [&](int64_t task, int64_t end) {
    Buffer<A> copies, lanes(kPart * kRoIChannels);
    for (; task < end; ++task) {
      const int64_t group = task / blocks * kPSPlanes, n = std::min(kPSPlanes, groups - group);
      const int64_t begin = task % blocks * kRoIChannels;
      const int64_t some = std::min(kRoIChannels, bins - begin);
      A* planes = copies.reserve(some * n * pixels);
      for (int64_t g = 0; g < n; ++g) {
        const int64_t c = (group + g) * bins + begin;
        // More than are wanted: parts of a vector cost more to load.
        const int64_t most = std::min(kRoIChannels, map.channels - c);
        const Planes<A> copy{planes + g * pixels, some, 1, pixels, false, n};
        for (int64_t first = 0; first < pixels; first += kPart) {
          const int64_t count = std::min(kPart, pixels - first);
          load_lanes(map, c, most, 0, first, count, lanes.data());
          store_lanes(lanes.data(), copy, 0, some, 0, first, count);
        }
      }
      for (int64_t bin = begin; bin < begin + some; ++bin, planes += n * pixels) {
        DETOPS_NARROW_IN_USE(ps_roi_align_forward<A, T>)(
            {taps.rows(bin), taps.cols(bin), run.order, run.count, planes, n, pixels, map.width,
             out + bin * groups + group, map.channels, 1});
      }
    }
  });
}

template <typename T, typename A = accumulate_t<T>>
void forward(const PSRun<A>& run, const Planes<const T>& map, T* out) {
  const int64_t bins = run.pooling.bins(), groups = map.channels / bins;
  const int64_t pixels = map.height * map.width, tasks = plane_blocks(groups) * bins;
  if (run.count == 0) return;
  const PSPlaneTaps<A> taps(run, map.height, map.width, DETOPS_NARROW_IN_USE(kLanes<A>));
  if (map.channels_last) {
    // RoIs may read so few positions that these cost less than copies of the planes. The costs are
    // in cycles, rounded from measurements.
    const double positions = taps.positions(), n = double(groups);
    const double direct = positions * (bins == 1 ? 4 + n / 2 : 8 * n);
    const double copy = 16 * double(pixels) * n * double(blocks_of(bins)) + positions * n / 4;
    return (direct < copy ? forward_positions<T> : forward_copies<T>)(run, taps, map, out);
  }
  const int64_t grain = tasks_per_thread(tasks, map.channels * run.count);
  parallel_each(tasks, grain, [&](int64_t task) {
    const int64_t bin = task % bins, group = task / bins * kPSPlanes;
    const int64_t plane = group * bins + bin, n = std::min(kPSPlanes, groups - group);
    DETOPS_NARROW_IN_USE(ps_roi_align_forward<T, T>)(
        {taps.rows(bin), taps.cols(bin), run.order, run.count, map.at(plane, 0, 0), n,
         bins * pixels, map.width, out + plane, map.channels, bins});
  });
}

// Threads own planes, or rows: no two write the same element, and each element adds its RoIs in the
// order of the plan, so the bits do not depend on the number of threads.
template <typename T, typename A = accumulate_t<T>>
void backward_planes(const PSRun<A>& run, const T* pooled, const Planes<T>& map) {
  const int64_t bins = run.pooling.bins(), groups = map.channels / bins;
  const int64_t width = map.width, pixels = map.height * width;
  const PSPlaneTaps<A> taps(run, map.height, width, DETOPS_NARROW_IN_USE(kLanes<A>));
  std::vector<math::PixelRange> reaches;  // of rows of bins
  for (int64_t bin = 0; bin < bins; bin += run.pooling.pooled_width) {
    reaches.push_back(taps.reach(bin));
  }
  const int64_t tasks = plane_blocks(groups) * bins, work = map.channels * (run.count + pixels);
  // Zeros are written fastest in one go; the planes of many sums are better near when those come.
  constexpr bool kInPlace = std::is_same_v<T, A>;
  const bool fresh = !kInPlace || 32 * taps.positions() > double(bins * pixels);
  if (!fresh) {
    parallel_for(map.channels, tasks_per_thread(map.channels, work),
                 [&](int64_t c, int64_t end) { clear_positions(map, c, end - c, 0, pixels); });
  }
  parallel_for(tasks, tasks_per_thread(tasks, work), [&](int64_t task, int64_t end) {
    GradientBand<T> band;
    for (; task < end; ++task) {
      const int64_t bin = task % bins, first = task / bins * kPSPlanes;
      const int64_t last = std::min(groups, first + kPSPlanes);
      const math::PixelRange reach = reaches[bin / run.pooling.pooled_width];
      const Planes<T> planes{map.at(bin, 0, 0), groups, map.height, width, false, bins};
      // Where numbers are too short to be summed in place, as many planes at a time as stay near
      // are summed elsewhere.
      const int64_t bytes = std::max<int64_t>(1, reach.size() * width) * sizeof(A);
      const int64_t near = std::max<int64_t>(1, kNearCache / bytes);
      const int64_t step = kInPlace ? kPSPlanes : near;
      for (int64_t group = first; group < last; group += step) {
        const int64_t n = std::min(step, last - group);
        if (fresh) {  // a plane in one go where its sums grow on it
          clear_positions(planes, group, n, 0, kInPlace ? pixels : reach.begin * width);
          if (!kInPlace) clear_positions(planes, group, n, reach.end * width, pixels);
        }
        if (reach.size() == 0) continue;
        A* sums = band.open(planes, group, n, reach.begin, reach.end, fresh && !kInPlace);
        DETOPS_NARROW_IN_USE(ps_roi_align_backward<A, T>)(
            {taps.rows(bin), taps.cols(bin), run.order, run.count, sums - reach.begin * width, n,
             band.plane_stride(), width, pooled + group * bins + bin, map.channels, bins});
        band.close();
      }
    }
  });
}

// One row of a channels_last map, number by number, for what few bins add to it.
template <typename T, typename A = accumulate_t<T>>
void add_to_row(const PSRun<A>& run, const PSRowTaps<A>& taps, int64_t row, int64_t channels,
                const T* pooled, A* sums) {
  const int64_t pooled_width = run.pooling.pooled_width, bins = run.pooling.bins();
  const int64_t groups = channels / bins;
  const PSTaps<A> cols = taps.cols();
  for (int64_t i = 0; i < taps.count(row); ++i) {
    const PSReach<A> reach = taps.begin(row)[i];
    for (int64_t pw = 0; pw < pooled_width; ++pw) {
      const int64_t bin = reach.ph * pooled_width + pw;
      const T* grad = pooled + (run.order[reach.roi] * bins + bin) * groups;
      const int64_t* tap = cols.begin + reach.roi * pooled_width + pw;
      for (int64_t k = tap[0]; k < tap[1]; ++k) {
        const A weight = reach.weight * cols.weight[k];
        A* to = sums + cols.index[k] * channels + bin;
        for (int64_t g = 0; g < groups; ++g) to[g * bins] += weight * A(math::to_float(grad[g]));
      }
    }
  }
}

// Row by row of a channels_last map: sums grow on the row, or where many bins reach it in lanes,
// [column, bin, kPSLanes], which are transposed to the row's channels.
template <typename T, typename A = accumulate_t<T>>
void backward_rows(const PSRun<A>& run, const T* pooled, const Planes<T>& map) {
  const int64_t bins = run.pooling.bins(), groups = map.channels / bins, count = run.count;
  const int64_t pooled_width = run.pooling.pooled_width, width = map.width;
  const int64_t blocks = divide_up(groups, kPSLanes);
  const PSRowTaps<A> taps(run, map.height, width);
  const int64_t work = map.channels * (count + map.height * width);
  // A number alone costs about three cycles, a position in lanes eight.
  const int64_t lanes_cost = 8 * width * bins * blocks;
  const int64_t reach_cost =
      count == 0 ? 0 : 3 * groups * taps.cols().begin[count * pooled_width] / count;
  parallel_for(map.height, tasks_per_thread(map.height, work), [&](int64_t y, int64_t end) {
    Buffer<A> sums;
    GradientBand<T> band;
    for (; y < end; ++y) {
      if (taps.count(y) == 0) {
        clear_positions(map, 0, map.channels, y * width, (y + 1) * width);
        continue;
      }
      if (taps.count(y) * reach_cost < lanes_cost) {
        A* row = band.open(map, 0, map.channels, y, y + 1, true);
        add_to_row(run, taps, y, map.channels, pooled, row);
        band.close();
        continue;
      }
      sums.reserve(width * bins * kPSLanes);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t group = groups * block / blocks;
        const int64_t n = groups * (block + 1) / blocks - group;
        DETOPS_IN_USE(ps_roi_rows_backward<T>)(
            {taps.begin(y), taps.count(y), taps.cols(), run.order, pooled_width, bins,
             pooled + group, groups, n, width, sums.data(), map.at(group * bins, y, 0)});
      }
    }
  });
}

// Calls use(T(), run, image) for the RoIs of each image of some maps of type T.
template <typename Use>
void for_each_run(const PSPooling& pooling, const Tensor& rois, const Tensor& maps,
                  const Use& use) {
  const int64_t images = maps.size(0), count = rois.size(0);
  const Tensor wide_rois = wide(rois, maps.scalar_type());
  with_element_type(maps.scalar_type(), [&](auto element) {
    using A = accumulate_t<decltype(element)>;
    const A* roi = wide_rois.const_data_ptr<A>();
    constexpr int64_t kNearPixels = 4096;  // so few are near in any order of the RoIs
    Plan plan;
    if (images == 1 && maps.size(2) * maps.size(3) <= kNearPixels) {
      check_batch_indices(pooling.op, roi, 5, count, images);
      plan = Plan{Buffer<uint32_t>(count), {{0, 0, 0, count}}};
      std::iota(plan.order.data(), plan.order.data() + count, 0u);
    } else {
      plan = make_plan(pooling.op, roi, count, images);
    }
    for (const Run& run : plan.runs) {
      const uint32_t* order = plan.order.data() + run.begin;
      use(element, PSRun<A>{pooling, roi, order, run.end - run.begin}, run.image);
    }
  });
}

void run_forward(const char* op, const Tensor& input, const Tensor& rois, double scale,
                 int64_t sampling_ratio, bool align, Tensor& output) {
  const PSPooling pooling{op, scale, output.size(2), output.size(3), sampling_ratio, align};
  const bool channels_last = is_channels_last(input);
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  for_each_run(pooling, rois, maps, [&](auto element, const auto& run, int64_t image) {
    using T = decltype(element);
    forward(run, planes_of<const T>(maps, image, channels_last), mutable_elements<T>(output));
  });
}

void run_backward(const char* op, const Tensor& grad, const Tensor& rois, double scale,
                  int64_t sampling_ratio, bool align, Tensor& maps) {
  const PSPooling pooling{op, scale, grad.size(2), grad.size(3), sampling_ratio, align};
  const bool channels_last = is_channels_last(maps);
  const Tensor pooled = to_memory_format(grad, maps.suggest_memory_format());
  for_each_run(pooling, rois, maps, [&](auto element, const auto& run, int64_t image) {
    using T = decltype(element);
    const auto backward = channels_last ? backward_rows<T> : backward_planes<T>;
    backward(run, elements<T>(pooled), planes_of<T>(maps, image, channels_last));
  });
}

}  // namespace

void ps_roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale, int64_t,
                          int64_t, int64_t sampling_ratio, Tensor& output) {
  run_forward("ps_roi_align", input, rois, spatial_scale, sampling_ratio, true, output);
}

void ps_roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale, int64_t,
                           int64_t, int64_t, int64_t, int64_t, int64_t, int64_t sampling_ratio,
                           Tensor& map) {
  run_backward("ps_roi_align_backward", grad, rois, spatial_scale, sampling_ratio, true, map);
}

void ps_roi_pool_forward(const Tensor& input, const Tensor& rois, double spatial_scale, int64_t,
                         int64_t, Tensor& output) {
  run_forward("ps_roi_pool", input, rois, spatial_scale, 0, false, output);
}

void ps_roi_pool_backward(const Tensor& grad, const Tensor& rois, double spatial_scale, int64_t,
                          int64_t, int64_t, int64_t, int64_t, int64_t, Tensor& map) {
  run_backward("ps_roi_pool_backward", grad, rois, spatial_scale, 0, false, map);
}

}  // namespace detops::cpu
