// SPDX-License-Identifier: MIT
#include "../../math/roi_align_rotated.h"

#include "../common/host.h"
#include "bin_taps.h"

// RoIAlign of rotated boxes, and the op that switches channels after it.
namespace detops::cpu {

// Samples of one bin that the kernels can hold: 16 x 16.
constexpr int64_t kMostSamples = 256;

// A rotated RoI whose samples are found when they are taken.
template <typename A>
struct RotatedTaps {
  math::RotatedRoI<A> roi;
  int64_t height, width, pooled_height;

  // A sample reads the row below it, too; one above or below the map reads the border.
  Reads reads() const {
    const auto row = [this](double y) {
      return static_cast<int64_t>(math::max(0.0, math::min(double(height - 1), y)));
    };
    const math::Rectangle r = math::bounds(roi);
    return {row(r.top), row(r.bottom) + 2, {0, width}};
  }
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
  int64_t sampling_ratio, pooled_height, pooled_width, height, width;

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
    return [r = roi(k), reach = math::sampling_range(height, width)](int64_t ph, int64_t pw,
                                                                     BinTable<A>& table) {
      math::visit_samples(r, ph, pw, reach, [&](A y, A x) { table.add_sample(y, x); });
      table.end_bin(1 / math::max(r.rows.count * r.cols.count, A(1)));
    };
  }
};

// RoIs in place of a Batch, whose samples are taken straight from the map.
template <typename A>
struct SampledRoIs {
  const RotatedSampling<A>& sampling;
  const uint32_t* order;
  int64_t size, pixels = 0, scratch = 0;
  Footprint footprint = {};  // not known

  int64_t roi(int64_t i) const { return order[i]; }
  RotatedTaps<A> taps(int64_t i) const {
    return {sampling.roi(order[i]), sampling.height, sampling.width, sampling.pooled_height};
  }
};

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

// Forward where M is const, else backward.
template <typename M, typename P>
void pool_maps(const char* op, const Tensor& maps, const Tensor& rois, double spatial_scale,
               int64_t sampling_ratio, const Tensor& pooled) {
  using T = std::remove_const_t<M>;
  using A = accumulate_t<T>;
  const Share all = all_bins(pooled);
  const RotatedSampling<A> sampling{elements<A>(rois), A(spatial_scale), sampling_ratio, all.high,
                                    all.wide,          maps.size(2),     maps.size(3)};
  const Plan plan = make_plan(
      op, sampling.rois, 6, rois.size(0), maps.size(0), 1, [](const A*) { return 0; },
      [](const A* roi) { return roi[2] - (math::abs(roi[3]) + math::abs(roi[4])) / 2; });
  if (!from_samples<T>(sampling, all.channels)) {
    return pool_plan<BinTable<A>, M, P>(plan, maps, pooled, [&](int64_t) { return sampling; });
  }
  using Sums = std::conditional_t<std::is_const_v<M>, M, A>;
  const bool channels_last = is_channels_last(maps);
  const auto pooled_of = [&](int64_t k) { return planes_of<P>(pooled, k, channels_last); };
  for (const Run& run : plan.runs) {
    const auto map = planes_of<M>(maps, run.image, channels_last);
    const SampledRoIs<A> some{sampling, plan.order.data() + run.begin, run.end - run.begin};
    run_in_place(some, all, map, DETOPS_IN_USE(rotated_samples<Sums, P>), true, pooled_of);
  }
}

// From maps to an output of their layout and dtype or, not `forward`, from its gradient to that of
// the maps, whose layout counts.
void run(const char* op, const Tensor& from, const Tensor& rois, double spatial_scale,
         int64_t sampling_ratio, bool forward, const Tensor& to) {
  const Tensor& maps = forward ? from : to;
  const Tensor source = to_memory_format(from, maps.suggest_memory_format());
  const Tensor wide_rois = wide(rois, from.scalar_type());
  with_element_type(from.scalar_type(), [&](auto element) {
    using T = decltype(element);
    if (forward) {
      pool_maps<const T, T>(op, source, wide_rois, spatial_scale, sampling_ratio, to);
    } else {
      pool_maps<T, const T>(op, to, wide_rois, spatial_scale, sampling_ratio, source);
    }
  });
}

// The RoIs of riroi_align_rotated as roi_align_rotated takes them.
Tensor placed_rois(const Tensor& rois, double spatial_scale, bool clockwise) {
  Tensor placed = empty(rois.sizes(), rois.options());
  DETOPS_WIDE_SWITCH(rois.scalar_type(), [&] {
    const scalar_t* from = rois.const_data_ptr<scalar_t>();
    scalar_t* to = placed.mutable_data_ptr<scalar_t>();
    for (int64_t k = 0; k < rois.size(0); ++k) {
      math::riroi_to_roi(from + 6 * k, static_cast<scalar_t>(spatial_scale), clockwise, to + 6 * k);
    }
  });
  return placed;
}

// `from` and `to` are [K, C, high, wide] in one layout, and may be one tensor.
template <typename From, typename To>
void switch_orientations(const Tensor& from, const Tensor& to, const Tensor& rois,
                         int64_t orientations, bool transposed) {
  using A = accumulate_t<From>;
  const int64_t channels = to.size(1), bins = to.size(2) * to.size(3), size = channels * bins;
  const bool last = is_channels_last(to);
  const auto kernel = DETOPS_IN_USE(switch_roi<From, To>);
  const int64_t room = last ? channels : orientations * bins;
  const int64_t count = to.size(0), grain = tasks_per_thread(count, count * size);
  const A* roi = rois.const_data_ptr<A>();
  const From* first = elements<From>(from);
  To* into = mutable_elements<To>(to);
  parallel_for(count, grain, [&](int64_t k, int64_t end) {
    Buffer<A> scratch(room);
    Buffer<int32_t> places(last ? 2 * channels : 0);
    for (; k < end; ++k) {
      const auto how = math::orientation_switch(roi[6 * k + 5], orientations);
      kernel(first + k * size, into + k * size, transposed ? how.transposed(orientations) : how,
             channels, orientations, bins, last, scratch.data(), places.data());
    }
  });
}

}  // namespace

void roi_align_rotated_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                               int64_t, int64_t, int64_t sampling_ratio, Tensor& output) {
  run("roi_align_rotated", input, rois, spatial_scale, sampling_ratio, true, output);
}

void roi_align_rotated_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                                int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                                int64_t sampling_ratio, Tensor& maps) {
  run("roi_align_rotated_backward", grad, rois, spatial_scale, sampling_ratio, false, maps);
}

// Samples weigh all channels alike, so a RoI is pooled once, and its channels are switched after.
void riroi_align_rotated_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                                 int64_t, int64_t, int64_t sampling_ratio, int64_t num_orientations,
                                 bool clockwise, Tensor& output) {
  const ScalarType type = compute_type(input.scalar_type());
  const Tensor rois = wide(boxes, type), placed = placed_rois(rois, spatial_scale, clockwise);
  const MemoryFormat format = output.suggest_memory_format();
  const bool narrow = output.scalar_type() != type;
  const Tensor pooled =
      narrow ? empty(output.sizes(), output.options().dtype(type), format) : output;
  run("riroi_align_rotated", input.to(type), placed, 1, sampling_ratio, true, pooled);
  with_element_type(output.scalar_type(), [&](auto element) {
    using T = decltype(element);
    switch_orientations<accumulate_t<T>, T>(pooled, output, rois, num_orientations, false);
  });
}

void riroi_align_rotated_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                  int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                                  int64_t sampling_ratio, int64_t num_orientations, bool clockwise,
                                  Tensor& map) {
  const ScalarType type = compute_type(grad.scalar_type());
  const Tensor rois = wide(boxes, type), placed = placed_rois(rois, spatial_scale, clockwise);
  const MemoryFormat format = map.suggest_memory_format();
  const Tensor outer = to_memory_format(grad, format);
  const Tensor pooled = empty(grad.sizes(), grad.options().dtype(type), format);
  with_element_type(grad.scalar_type(), [&](auto element) {
    using T = decltype(element);
    if (grad.numel() == 0) return;
    switch_orientations<T, accumulate_t<T>>(outer, pooled, rois, num_orientations, true);
  });
  const bool narrow = map.scalar_type() != type;
  const Tensor sums = narrow ? empty(map.sizes(), map.options().dtype(type), format) : map;
  run("riroi_align_rotated_backward", pooled, placed, 1, sampling_ratio, false, sums);
  if (narrow) map.copy_(sums);
}

}  // namespace detops::cpu
