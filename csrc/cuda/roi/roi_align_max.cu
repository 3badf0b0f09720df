// SPDX-License-Identifier: MIT
#include "max_samples.cuh"

namespace detops::cuda {
namespace {

template <typename A>
using MaxPooling = BoxPooling<SampleRule, A>;

// A thread has a bin of one channel.
template <typename T, typename A>
__global__ void roi_align_max_kernel(MaxPooling<A> pooling, const T* input, T* output, A* argmax_y,
                                     A* argmax_x) {
  const RoIPooling<A>& p = pooling.p;
  const Strides& s = p.maps.strides;
  DETOPS_FOR_EACH(i, p.pooled.elements()) {
    const Position at = p.pooled.position(i);
    const int64_t image = p.image(at.n);
    const auto rows = math::bin_line(pooling.rows(at.n), at.h);
    const auto cols = math::bin_line(pooling.cols(at.n), at.w);
    math::LargestSample<A> largest{A(0), -1, -1};
    if (image >= 0) {
      const T* map = input + s.at(image, at.c, 0, 0);
      largest = math::largest_sample(rows, cols, p.maps.h, p.maps.w, [&](int64_t y, int64_t x) {
        return static_cast<A>(map[y * s.h + x * s.w]);
      });
    }
    output[i] = static_cast<T>(largest.value);
    argmax_y[i] = largest.row < 0 ? A(math::kOffMap) : rows.at(largest.row);
    argmax_x[i] = largest.row < 0 ? A(math::kOffMap) : cols.at(largest.col);
  }
}

// Items are RoIs.
template <typename T, typename A_>
struct PooledMaxima {
  using A = A_;
  PlaceByWindow<MaxPooling<A>> rois;
  Maps maps, pooled;
  int64_t bins;
  const T* grads;
  const A *argmax_y, *argmax_x;

  __device__ PlacedRoI placed(int64_t k) const { return rois.placed(k); }
  __device__ GivenSample<A> given(int64_t k, int64_t bin, int64_t c) const {
    const int64_t i = pooled.strides.at(k, c, bin / pooled.w, bin % pooled.w);
    return {argmax_y[i], argmax_x[i], static_cast<A>(grads[i])};
  }
};

}  // namespace

void roi_align_max_forward(const Tensor& input, const Tensor& boxes, double spatial_scale, int64_t,
                           int64_t, int64_t sampling_ratio, bool aligned, Tensor& output,
                           Tensor& argmax_y, Tensor& argmax_x) {
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor rois = wide(boxes, input.scalar_type());
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const MaxPooling<A> pooling{{rois, spatial_scale, output, maps}, {sampling_ratio, aligned}};
    launch("roi_align_max", roi_align_max_kernel<scalar_t, A>, blocks_for(output.numel()), pooling,
           maps, output, argmax_y, argmax_x);
  });
}

void roi_align_max_backward(const Tensor& grad, const Tensor& boxes, const Tensor& argmax_y,
                            const Tensor& argmax_x, double spatial_scale, int64_t, int64_t, int64_t,
                            int64_t, int64_t, int64_t, int64_t sampling_ratio, bool aligned,
                            Tensor& map) {
  const MemoryFormat format = map.suggest_memory_format();
  const ScalarType type = compute_type(grad.scalar_type());
  const Tensor rois = wide(boxes, type), outer = grad.contiguous(format);
  const Tensor rows = as_type(argmax_y, type).contiguous(format);
  const Tensor cols = as_type(argmax_x, type).contiguous(format);
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const MaxPooling<A> pooling{{rois, spatial_scale, outer, map}, {sampling_ratio, aligned}};
    const auto& p = pooling.p;
    const PooledMaxima<scalar_t, A> maxima{{pooling},
                                           p.maps,
                                           p.pooled,
                                           p.pooled.pixels(),
                                           outer.const_data_ptr<scalar_t>(),
                                           rows.const_data_ptr<A>(),
                                           cols.const_data_ptr<A>()};
    max_samples_backward<scalar_t>("roi_align_max_backward", maxima, boxes.size(0), map);
  });
}

}  // namespace detops::cuda
