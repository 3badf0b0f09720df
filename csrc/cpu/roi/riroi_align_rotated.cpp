// SPDX-License-Identifier: MIT
#include "../../math/roi_align_rotated.h"

#include "../../ops.h"
#include "../common/buffer.h"
#include "../common/element_type.h"
#include "../common/memory.h"
#include "roi_align_rotated.h"
#include "roi_plan.h"

namespace detops::cpu {

// One pooled RoI in either layout, from one tensor to another or within one.
template <typename From, typename To>
struct SwitchTask {
  using A = accumulate_t<From>;
  const From* from;
  To* to;
  math::OrientationSwitch<A> how;
  int64_t channels, orientations, bins;
  bool channels_last;
  A* scratch;       // room for the bins of all orientations, or for all channels
  int32_t* places;  // for twice the channels
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../roi/riroi_align_rotated.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// The RoIs as roi_align_rotated takes them.
Tensor placed_rois(const Tensor& rois, double spatial_scale, bool clockwise) {
  const Tensor placed = empty(rois.sizes(), rois.options());
  DETOPS_WIDE_SWITCH(rois.scalar_type(), [&] {
    const scalar_t* from = rois.const_data_ptr<scalar_t>();
    scalar_t* to = placed.mutable_data_ptr<scalar_t>();
    for (int64_t k = 0; k < rois.size(0); ++k) {
      math::place_riroi(from + 6 * k, static_cast<scalar_t>(spatial_scale), clockwise, to + 6 * k);
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
  const From* first = static_cast<const From*>(from.const_data_ptr());
  To* into = static_cast<To*>(to.mutable_data_ptr());
  parallel_for(0, count, grain, [&](int64_t k, int64_t end) {
    Buffer<A> scratch(room);
    Buffer<int32_t> places(last ? 2 * channels : 0);
    for (; k < end; ++k) {
      const A angle = roi[6 * k + 5];
      const auto how = math::orientation_switch(angle, orientations);
      kernel({first + k * size, into + k * size, transposed ? how.transposed(orientations) : how,
              channels, orientations, bins, last, scratch.data(), places.data()});
    }
  });
}

}  // namespace

// Samples weigh all channels alike, so a RoI is pooled once, and its channels are switched after.
void riroi_align_rotated_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                                 int64_t pooled_height, int64_t pooled_width,
                                 int64_t sampling_ratio, int64_t num_orientations, bool clockwise,
                                 Tensor& output) {
  const ScalarType type = compute_type(input.scalar_type());
  const Tensor rois = wide(boxes, type), placed = placed_rois(rois, spatial_scale, clockwise);
  const MemoryFormat format = output.suggest_memory_format();
  const bool narrow = output.scalar_type() != type;
  Tensor pooled = narrow ? empty(output.sizes(), output.options().dtype(type), format) : output;
  pool_rotated("riroi_align_rotated", as_type(input, type), placed, 1, sampling_ratio, pooled);
  with_element_type(output.scalar_type(), [&](auto element) {
    using T = decltype(element);
    switch_orientations<accumulate_t<T>, T>(pooled, output, rois, num_orientations, false);
  });
}

void riroi_align_rotated_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                  int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                                  int64_t channels, int64_t height, int64_t width,
                                  int64_t sampling_ratio, int64_t num_orientations, bool clockwise,
                                  Tensor& map) {
  const ScalarType type = compute_type(grad.scalar_type());
  const Tensor rois = wide(boxes, type), placed = placed_rois(rois, spatial_scale, clockwise);
  const MemoryFormat format = map.suggest_memory_format();
  const Tensor outer = in_layout(grad, format);
  const Tensor pooled = empty(grad.sizes(), grad.options().dtype(type), format);
  with_element_type(grad.scalar_type(), [&](auto element) {
    using T = decltype(element);
    if (grad.numel() == 0) return;
    switch_orientations<T, accumulate_t<T>>(outer, pooled, rois, num_orientations, true);
  });
  const bool narrow = map.scalar_type() != type;
  Tensor sums = narrow ? empty(map.sizes(), map.options().dtype(type), format) : map;
  spread_rotated("riroi_align_rotated_backward", pooled, placed, 1, sampling_ratio, sums);
  if (narrow) map.copy_(sums);
}

}  // namespace detops::cpu
