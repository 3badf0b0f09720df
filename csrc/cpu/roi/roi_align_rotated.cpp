// SPDX-License-Identifier: MIT
#include "../../math/roi_align_rotated.h"
#include "../../ops.h"
#include "../common/element_type.h"
#include "../common/memory.h"
#include "bin_taps.h"
#include "roi_align_rotated.h"

namespace detops::cpu {

// Samples of one bin that the kernels can hold: 16 x 16.
constexpr int64_t kMostSamples = 256;

// One rotated RoI on some channels of a map as they are. Backward, on the positions
// [first_position, first_position + positions) of the map, which begins with them: whole rows.
template <typename M, typename P>
struct RotatedPlanes {
  math::RotatedRoI<accumulate_t<std::remove_const_t<M>>> roi;
  int64_t height, width;
  M* map;
  int64_t channels, channel_stride, position_stride;
  P* pooled;  // a row of bins behind the other
  int64_t pooled_height, pooled_width, pooled_channel_stride, bin_stride;
  int64_t first_position, positions;
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../roi/roi_align_rotated.inl"
#include "linear_pool.h"

namespace detops::cpu {
namespace {

template <typename A>
struct RotatedSampling {
  const A* rois;  // [K, 6]
  A scale;
  int64_t pooled_height, pooled_width, sampling_ratio, height, width;

  math::RotatedRoI<A> roi(int64_t k) const {
    return math::rotated_roi(rois + 6 * k + 1, scale, pooled_height, pooled_width, sampling_ratio);
  }

  double taps(int64_t k) const {
    const math::RotatedRoI<A> r = roi(k);
    const double bins = double(pooled_height) * double(pooled_width);
    return std::min(4 * bins * double(r.rows.count) * double(r.cols.count),
                    2 * double(height) * double(width) + 16 * bins);
  }

  auto bins_of(int64_t k) const {
    return [r = roi(k), reach = math::reach_of_map(height, width), height = height, width = width](
               int64_t ph, int64_t pw, BinTable<A>& table) {
      math::visit_samples(r, ph, pw, reach, [&](A y, A x) {
        math::Taps<A> rows, cols;
        if (math::bilinear_taps(y, height, rows) && math::bilinear_taps(x, width, cols)) {
          table.add_sample(rows, cols);
        }
      });
      table.end_bin(1 / math::max(r.rows.count * r.cols.count, A(1)));
    };
  }
};

template <typename A>
RotatedSampling<A> make_sampling(const Tensor& rois, double spatial_scale, const Tensor& pooled,
                                 const Tensor& maps, int64_t sampling_ratio) {
  return {rois.const_data_ptr<A>(),
          static_cast<A>(spatial_scale),
          pooled.size(2),
          pooled.size(3),
          sampling_ratio,
          maps.size(2),
          maps.size(3)};
}

template <typename A>
Plan plan_of(const char* op, const RotatedSampling<A>& sampling, const Tensor& rois,
             int64_t images) {
  return make_plan(
      op, sampling.rois, 6, rois.size(0), images, 1, [](const A*) { return 0; },
      [](const A* roi) { return roi[2] - (math::abs(roi[3]) + math::abs(roi[4])) / 2; });
}

Share whole(const Tensor& pooled) {
  return {0, pooled.size(1), 0, 0, pooled.size(2), pooled.size(3)};
}

// Whether samples are taken straight from the map: a table of what each bin reads pays only where
// several channels read it, or where they are float16, which a plain number is widened from slowly.
template <typename T, typename A>
bool from_samples(const RotatedSampling<A>& sampling, int64_t channels) {
  constexpr int64_t kExactInFloat = 1 << 24, kMost = std::is_same_v<T, Half> ? 2 : 8;
  const int64_t ratio = sampling.sampling_ratio;
  return channels <= kMost && ratio > 0 && ratio * ratio <= kMostSamples &&
         std::min(sampling.height, sampling.width) >= 2 &&
         std::max(sampling.height, sampling.width) < kExactInFloat;
}

template <typename M, typename P, typename A>
RotatedPlanes<M, P> rotated_planes(const RotatedSampling<A>& sampling, int64_t k, M* map,
                                   int64_t channels, int64_t channel_stride,
                                   const Planes<P>& pooled, int64_t channel) {
  const bool last = pooled.channels_last;
  return {sampling.roi(k),
          sampling.height,
          sampling.width,
          map,
          channels,
          last ? 1 : channel_stride,
          last ? channels : 1,
          pooled.at(channel, 0, 0),
          pooled.height,
          pooled.width,
          last ? 1 : pooled.stride(),
          last ? pooled.channels : 1,
          0,
          sampling.height * sampling.width};
}

// Maps and pooled RoIs in the same layout.
template <typename T, typename A>
void forward_samples(const RotatedSampling<A>& sampling, const Plan& plan, const Tensor& maps,
                     const Tensor& output, bool channels_last) {
  for (const Run& run : plan.runs) {
    const Planes<const T> map = planes_of<const T>(maps, run.image, channels_last);
    const int64_t rois = run.end - run.begin;
    const int64_t grain = tasks_per_thread(rois, rois * (output.numel() / output.size(0)));
    parallel_for(run.begin, run.end, grain, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        const int64_t k = plan.order[i];
        const Planes<T> pooled = planes_of<T>(output, k, channels_last);
        DETOPS_IN_USE(rotated_samples_forward<T>)(rotated_planes<const T, T>(
            sampling, k, map.data, map.channels, map.stride(), pooled, 0));
      }
    });
  }
}

// Threads own bands of rows of some channels, as in spread_in_place.
template <typename T, typename A>
void backward_samples(const RotatedSampling<A>& sampling, const Plan& plan, const Tensor& maps,
                      const Tensor& grads, bool channels_last) {
  for (const Run& run : plan.runs) {
    const Planes<T> map = planes_of<T>(maps, run.image, channels_last);
    const int64_t together = interleaved(map);
    const BandTasks tasks(map.channels / together, map.height,
                          map.width * together * int64_t(sizeof(A)), !std::is_same_v<T, A>);
    const int64_t outputs = map.channels * ((run.end - run.begin) * grads.size(2) * grads.size(3) +
                                            map.height * map.width);
    const int64_t grain = tasks_per_thread(tasks.size(), outputs);
    parallel_for(0, tasks.size(), grain, [&](int64_t task, int64_t last) {
      GradientBand<T> band;
      for (; task < last; ++task) {
        const BandTask t = tasks[task];
        A* sums = band.open(map, t.plane, t.planes * together, t.begin, t.end, true);
        for (int64_t i = run.begin; i < run.end; ++i) {
          const int64_t k = plan.order[i];
          const math::Rectangle reads = bounds(sampling.roi(k));
          // A sample reads the rows beside it; one above or below the map reads the border.
          if (reads.top >= double(t.end) && t.end < map.height) continue;
          if (reads.bottom < double(t.begin - 1) && t.begin > 0) continue;
          const Planes<const T> pooled = planes_of<const T>(grads, k, channels_last);
          auto planes = rotated_planes<A, const T>(sampling, k, sums, t.planes * together,
                                                   band.plane_stride(), pooled, t.plane);
          planes.first_position = t.begin * map.width;
          planes.positions = (t.end - t.begin) * map.width;
          DETOPS_IN_USE(rotated_samples_backward<T>)(planes);
        }
        band.close();
      }
    });
  }
}

}  // namespace

void pool_rotated(const char* op, const Tensor& input, const Tensor& rois, double spatial_scale,
                  int64_t sampling_ratio, Tensor& output) {
  check_positions(op, input.size(2), input.size(3));
  expect_writes(output);
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor wide_rois = wide(rois, input.scalar_type());
  const bool channels_last = is_channels_last(input);
  with_element_type(input.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto sampling =
        make_sampling<accumulate_t<T>>(wide_rois, spatial_scale, output, maps, sampling_ratio);
    const Plan plan = plan_of(op, sampling, rois, maps.size(0));
    if (from_samples<T>(sampling, maps.size(1))) {
      return forward_samples<T>(sampling, plan, maps, output, channels_last);
    }
    Batch<BinTable<accumulate_t<T>>> batch;
    for (const Run& run : plan.runs) {
      pool_run<T>(batch, sampling, plan.order.data(), run, whole(output),
                  planes_of<const T>(maps, run.image, channels_last), output.nbytes(),
                  [&](int64_t k) { return planes_of<T>(output, k, channels_last); });
    }
  });
}

void spread_rotated(const char* op, const Tensor& grad, const Tensor& rois, double spatial_scale,
                    int64_t sampling_ratio, Tensor& maps) {
  check_positions(op, maps.size(2), maps.size(3));
  expect_writes(maps);
  const bool channels_last = is_channels_last(maps);
  const Tensor pooled = in_layout(grad, maps.suggest_memory_format());
  const Tensor wide_rois = wide(rois, grad.scalar_type());
  with_element_type(grad.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto sampling =
        make_sampling<accumulate_t<T>>(wide_rois, spatial_scale, pooled, maps, sampling_ratio);
    const Plan plan = plan_of(op, sampling, rois, maps.size(0));
    if (from_samples<T>(sampling, maps.size(1))) {
      return backward_samples<T>(sampling, plan, maps, pooled, channels_last);
    }
    Batch<BinTable<accumulate_t<T>>> batch;
    for (const Run& run : plan.runs) {
      spread_run(batch, sampling, plan.order.data(), run, whole(pooled),
                 planes_of<T>(maps, run.image, channels_last), maps.nbytes(),
                 [&](int64_t k) { return planes_of<const T>(pooled, k, channels_last); });
    }
  });
}

void roi_align_rotated_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                               int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                               Tensor& output) {
  pool_rotated("roi_align_rotated", input, rois, spatial_scale, sampling_ratio, output);
}

void roi_align_rotated_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                                int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                                int64_t channels, int64_t height, int64_t width,
                                int64_t sampling_ratio, Tensor& maps) {
  spread_rotated("roi_align_rotated_backward", grad, rois, spatial_scale, sampling_ratio, maps);
}

}  // namespace detops::cpu
