// SPDX-License-Identifier: MIT
#include "sparse_pool.cuh"

// "R-FCN" (Dai et al., 2016), section 2: bin (ph, pw) of channel c reads only channel
// (c * pooled_height + ph) * pooled_width + pw of the feature map. PSRoIAlign and PSRoIPool differ
// only in their axis rule, so both ops are here.
namespace detops::cuda {
namespace {

template <typename A>
using PixelPooling = BoxPooling<PixelRule<0>, A>;

}  // namespace

void ps_roi_align_forward(const Tensor& input, const Tensor& boxes, double spatial_scale, int64_t,
                          int64_t, int64_t sampling_ratio, Tensor& output) {
  sparse_pool_forward<SampledBoxes>(input, boxes, spatial_scale, output,
                                    SampleRule{sampling_ratio, true});
}

void ps_roi_align_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale, int64_t,
                           int64_t, int64_t, int64_t, int64_t, int64_t, int64_t sampling_ratio,
                           Tensor& map) {
  sparse_pool_backward<SampledBoxes>(grad, boxes, spatial_scale, map,
                                     SampleRule{sampling_ratio, true});
}

void ps_roi_pool_forward(const Tensor& input, const Tensor& boxes, double spatial_scale, int64_t,
                         int64_t, Tensor& output) {
  sparse_pool_forward<PixelPooling>(input, boxes, spatial_scale, output, PixelRule<0>());
}

void ps_roi_pool_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale, int64_t,
                          int64_t, int64_t, int64_t, int64_t, int64_t, Tensor& map) {
  sparse_pool_backward<PixelPooling>(grad, boxes, spatial_scale, map, PixelRule<0>());
}

}  // namespace detops::cuda
