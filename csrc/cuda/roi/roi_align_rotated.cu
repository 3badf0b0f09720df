// SPDX-License-Identifier: MIT
#include "../../math/roi_align_rotated.h"
#include "../../ops.h"
#include "sparse_pool.cuh"

namespace detops::cuda {
namespace {

template <typename A_>
struct RotatedSampling {
  using A = A_;
  const A* rois;  // [K, 6]
  A scale;
  int64_t images, pooled_height, pooled_width, sampling_ratio, height, width;
  int64_t classes = 1;

  __device__ int64_t image(int64_t k) const { return image_of(rois + 6 * k, images); }

  __device__ math::RotatedRoI<A> roi(int64_t k) const {
    return math::rotated_roi(rois + 6 * k + 1, scale, pooled_height, pooled_width, sampling_ratio);
  }

  __device__ math::Rectangle bounds(int64_t k, int64_t) const { return math::bounds(roi(k)); }

  __device__ int64_t most_taps(int64_t k) const {
    const math::RotatedRoI<A> r = roi(k);
    return static_cast<int64_t>(r.rows.count) * static_cast<int64_t>(r.cols.count) * 4;
  }

  template <typename Visit>
  __device__ A visit_bin(int64_t k, int64_t, int64_t ph, int64_t pw, const math::Rectangle& reach,
                         Visit&& visit) const {
    const math::RotatedRoI<A> r = roi(k);
    math::visit_samples(r, ph, pw, reach, [&](A y, A x) {
      math::Taps<A> rows, cols;
      if (math::bilinear_taps(y, height, rows) && math::bilinear_taps(x, width, cols)) {
        math::visit_corners(rows, cols, visit);
      }
    });
    return 1 / math::max(r.rows.count * r.cols.count, A(1));
  }
};

template <typename A>
RotatedSampling<A> make_sampling(const Tensor& rois, double spatial_scale, const Tensor& pooled,
                                 const Tensor& maps, int64_t sampling_ratio) {
  return {rois.const_data_ptr<A>(),
          static_cast<A>(spatial_scale),
          maps.size(0),
          pooled.size(2),
          pooled.size(3),
          sampling_ratio,
          maps.size(2),
          maps.size(3)};
}

}  // namespace

void roi_align_rotated_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                               int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                               Tensor& output) {
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor wide_rois = wide(rois, input.scalar_type());
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    sparse_pool_forward("roi_align_rotated", sparse_pool_params<scalar_t>(output, maps, 1, 1),
                        make_sampling<accumulate_t<scalar_t>>(wide_rois, spatial_scale, output,
                                                              maps, sampling_ratio),
                        maps, output);
  });
}

void roi_align_rotated_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                                int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                                int64_t channels, int64_t height, int64_t width,
                                int64_t sampling_ratio, Tensor& map) {
  const Tensor pooled = grad.contiguous(map.suggest_memory_format());
  const Tensor wide_rois = wide(rois, grad.scalar_type());
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    sparse_pool_backward("roi_align_rotated_backward",
                         sparse_pool_params<scalar_t>(pooled, map, 1, 1),
                         make_sampling<accumulate_t<scalar_t>>(wide_rois, spatial_scale, pooled,
                                                               map, sampling_ratio),
                         pooled, map);
  });
}

}  // namespace detops::cuda
