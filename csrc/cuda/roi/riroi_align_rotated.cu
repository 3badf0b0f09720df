// SPDX-License-Identifier: MIT
#include "../../math/roi_align_rotated.h"

#include "../../ops.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

template <typename A>
__global__ void placed_rois_kernel(const A* rois, int64_t count, A spatial_scale, bool clockwise,
                                   A* placed) {
  DETOPS_FOR_EACH(k, count) {
    math::place_riroi(rois + 6 * k, spatial_scale, clockwise, placed + 6 * k);
  }
}

// Of [K, C, high, wide] in either layout.
template <typename A>
struct Switch {
  const A* rois;  // [K, 6]
  int64_t channels, orientations, bins, elements;
  bool channels_last, transposed;
};

// A thread per element.
template <typename From, typename To, typename A>
__global__ void switch_kernel(Switch<A> s, const From* from, To* to) {
  const int64_t apart = s.channels_last ? 1 : s.bins;
  DETOPS_FOR_EACH(i, s.elements) {
    const int64_t c = s.channels_last ? i % s.channels : i / s.bins % s.channels;
    const int64_t k = i / (s.channels * s.bins), o = c % s.orientations;
    const auto forward = math::orientation_switch(s.rois[6 * k + 5], s.orientations);
    const auto how = s.transposed ? forward.transposed(s.orientations) : forward;
    const From* group = from + i - o * apart;
    A sum = static_cast<A>(group[(o + how.first) % s.orientations * apart]);
    if (how.share != 0) {  // what is not finite must not meet a share of zero
      sum = how.keep * sum +
            how.share * static_cast<A>(group[(o + how.second) % s.orientations * apart]);
    }
    to[i] = static_cast<To>(sum);
  }
}

template <typename A>
Tensor placed_rois(const char* op, const Tensor& rois, double spatial_scale, bool clockwise) {
  const Tensor placed = empty(rois.sizes(), rois.options());
  launch(op, placed_rois_kernel<A>, blocks_for(rois.size(0)), rois.const_data_ptr<A>(),
         rois.size(0), static_cast<A>(spatial_scale), clockwise, placed.mutable_data_ptr<A>());
  return placed;
}

// `from` and `to` are in one layout.
template <typename From, typename To, typename A>
void switch_orientations(const char* op, const Tensor& from, const Tensor& to, const Tensor& rois,
                         int64_t orientations, bool transposed) {
  const Switch<A> s{
      rois.const_data_ptr<A>(), to.size(1), orientations, to.size(2) * to.size(3), to.numel(),
      is_channels_last(to),     transposed};
  launch(op, switch_kernel<From, To, A>, blocks_for(s.elements), s, from.const_data_ptr<From>(),
         to.mutable_data_ptr<To>());
}

}  // namespace

// Samples weigh all channels alike, so a RoI is pooled once, and its channels are switched after.
void riroi_align_rotated_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                                 int64_t pooled_height, int64_t pooled_width,
                                 int64_t sampling_ratio, int64_t num_orientations, bool clockwise,
                                 Tensor& output) {
  constexpr const char* kOp = "riroi_align_rotated";
  const ScalarType type = compute_type(input.scalar_type());
  const Tensor rois = wide(boxes, type);
  Tensor pooled =
      empty(output.sizes(), output.options().dtype(type), output.suggest_memory_format());
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const Tensor placed = placed_rois<A>(kOp, rois, spatial_scale, clockwise);
    roi_align_rotated_forward(as_type(input, type), placed, 1, pooled_height, pooled_width,
                              sampling_ratio, pooled);
    switch_orientations<A, scalar_t, A>(kOp, pooled, output, rois, num_orientations, false);
  });
}

void riroi_align_rotated_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                  int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                                  int64_t channels, int64_t height, int64_t width,
                                  int64_t sampling_ratio, int64_t num_orientations, bool clockwise,
                                  Tensor& map) {
  constexpr const char* kOp = "riroi_align_rotated_backward";
  const ScalarType type = compute_type(grad.scalar_type());
  const MemoryFormat format = map.suggest_memory_format();
  const Tensor rois = wide(boxes, type), outer = grad.contiguous(format);
  const Tensor pooled = empty(grad.sizes(), grad.options().dtype(type), format);
  const bool narrow = map.scalar_type() != type;
  Tensor sums = narrow ? empty(map.sizes(), map.options().dtype(type), format) : map;
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const Tensor placed = placed_rois<A>(kOp, rois, spatial_scale, clockwise);
    switch_orientations<scalar_t, A, A>(kOp, outer, pooled, rois, num_orientations, true);
    roi_align_rotated_backward(pooled, placed, 1, pooled_height, pooled_width, batch_size, channels,
                               height, width, sampling_ratio, sums);
  });
  if (narrow) map.copy_(sums);
}

}  // namespace detops::cuda
