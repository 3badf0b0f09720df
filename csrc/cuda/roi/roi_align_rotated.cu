// SPDX-License-Identifier: MIT
#include "../../math/roi_align_rotated.h"
#include "sparse_pool.cuh"

namespace detops::cuda {
namespace {

template <typename A_>
struct RotatedSampling {
  using A = A_;
  RoIPooling<A> p;  // of rois [K, 6]
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
    math::visit_samples(r, ph, pw, reach, [&](A y, A x) {
      math::Taps<A> rows, cols;
      if (math::bilinear_taps(y, p.maps.h, rows) && math::bilinear_taps(x, p.maps.w, cols)) {
        math::visit_corners(rows, cols, visit);
      }
    });
    return 1 / math::max(r.rows.count * r.cols.count, A(1));
  }
};

}  // namespace

void roi_align_rotated_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                               int64_t, int64_t, int64_t sampling_ratio, Tensor& output) {
  sparse_pool_forward<RotatedSampling>("roi_align_rotated", input, boxes, spatial_scale, output,
                                       sampling_ratio);
}

void roi_align_rotated_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                                int64_t sampling_ratio, Tensor& map) {
  sparse_pool_backward<RotatedSampling>("roi_align_rotated_backward", grad, boxes, spatial_scale,
                                        map, sampling_ratio);
}

}  // namespace detops::cuda
