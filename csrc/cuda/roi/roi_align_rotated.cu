// SPDX-License-Identifier: MIT
#include "../../math/roi_align_rotated.h"
#include "sparse_pool.cuh"

// RiRoIAlign is rotated RoIAlign and a switch of orientation channels: after pooling in the forward
// pass, before it in the backward pass. Both ops are here.
namespace detops::cuda {
namespace {

template <typename A_>
struct RotatedSampling {
  using A = A_;
  RoIPooling<A> p;  // rois: [K, 6]
  int64_t sampling_ratio;

  __device__ math::RotatedRoI<A> roi(int64_t k) const {
    return math::rotated_roi(p.roi(k) + 1, p.scale, p.pooled.h, p.pooled.w, sampling_ratio);
  }

  __device__ Window window(int64_t k, int64_t) const {
    const math::Rectangle bounds = math::bounds(roi(k));
    return window_of({bounds.top, bounds.bottom}, {bounds.left, bounds.right}, p.maps.h, p.maps.w);
  }

  __device__ int64_t most_taps(int64_t k) const {
    const math::RotatedRoI<A> r = roi(k);
    return static_cast<int64_t>(r.rows.count) * static_cast<int64_t>(r.cols.count) * 4;
  }

  template <typename Visit>
  __device__ A visit_bin(int64_t k, int64_t, int64_t ph, int64_t pw, const math::Rectangle& reach,
                         const Visit& visit) const {
    const math::RotatedRoI<A> r = roi(k);
    math::visit_samples(r, ph, pw, reach,
                        [&](A y, A x) { math::visit_corners(y, x, p.maps.h, p.maps.w, visit); });
    return 1 / math::max(r.rows.count * r.cols.count, A(1));
  }
};

// One thread per element of the pooled output, or of its gradient. `from` and `to` have the same
// layout.
template <typename From, typename To, typename A>
__global__ void switch_kernel(const A* rois, FeatureMaps pooled, int64_t orientations,
                              bool transposed, const From* from, To* to) {
  const int64_t apart = pooled.strides.c;
  DETOPS_FOR_EACH(i, pooled.elements()) {
    const int64_t c = pooled.channels_last ? i % pooled.c : i / apart % pooled.c;
    const int64_t k = i / pooled.strides.n, o = c % orientations;
    const auto forward = math::orientation_switch(rois[6 * k + 5], orientations);
    const auto how = transposed ? forward.transposed(orientations) : forward;
    const From* group = from + i - o * apart;
    A sum = static_cast<A>(group[(o + how.first) % orientations * apart]);
    if (how.second_weight != 0) {  // 0 * infinity is NaN, as is 0 * NaN
      sum = how.first_weight * sum +
            how.second_weight * static_cast<A>(group[(o + how.second) % orientations * apart]);
    }
    to[i] = static_cast<To>(sum);
  }
}

template <typename A>
Tensor placed_rois(const Tensor& rois, double spatial_scale, bool clockwise) {
  const Tensor placed = empty(rois.sizes(), rois.options());
  const A* from = elements(rois);
  A* to = elements(placed);
  for_each(rois.size(0), [=] __device__(int64_t k) {
    math::riroi_to_roi(from + 6 * k, A(spatial_scale), clockwise, to + 6 * k);
  });
  return placed;
}

}  // namespace

void roi_align_rotated_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                               int64_t, int64_t, int64_t sampling_ratio, Tensor& output) {
  sparse_pool_forward<RotatedSampling>(input, boxes, spatial_scale, output, sampling_ratio);
}

void roi_align_rotated_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                                int64_t sampling_ratio, Tensor& map) {
  sparse_pool_backward<RotatedSampling>(grad, boxes, spatial_scale, map, sampling_ratio);
}

// Sample weights are the same for all channels: a RoI is pooled once, then channels are switched.
void riroi_align_rotated_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                                 int64_t, int64_t, int64_t sampling_ratio, int64_t num_orientations,
                                 bool clockwise, Tensor& output) {
  const ScalarType type = compute_type(input.scalar_type());
  const Tensor rois = wide(boxes, type);
  const Tensor pooled =
      empty(output.sizes(), output.options().dtype(type), output.suggest_memory_format());
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const Tensor placed = placed_rois<A>(rois, spatial_scale, clockwise);
    sparse_pool_forward<RotatedSampling>(input.to(type), placed, 1, pooled, sampling_ratio);
    launch(switch_kernel<A, scalar_t, A>, blocks_for(output.numel()), rois, maps_of(output),
           num_orientations, false, pooled, output);
  });
}

void riroi_align_rotated_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                  int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                                  int64_t sampling_ratio, int64_t num_orientations, bool clockwise,
                                  Tensor& map) {
  const ScalarType type = compute_type(grad.scalar_type());
  const MemoryFormat format = map.suggest_memory_format();
  const Tensor rois = wide(boxes, type), outer = grad.contiguous(format);
  const Tensor pooled = empty(grad.sizes(), grad.options().dtype(type), format);
  const bool narrow = map.scalar_type() != type;
  const Tensor sums = narrow ? empty(map.sizes(), map.options().dtype(type), format) : map;
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const Tensor placed = placed_rois<A>(rois, spatial_scale, clockwise);
    launch(switch_kernel<scalar_t, A, A>, blocks_for(pooled.numel()), rois, maps_of(pooled),
           num_orientations, true, outer, pooled);
    sparse_pool_backward<RotatedSampling>(pooled, placed, 1, sums, sampling_ratio);
  });
  if (narrow) map.copy_(sums);
}

}  // namespace detops::cuda
