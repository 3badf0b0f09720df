// SPDX-License-Identifier: MIT
#include "../../math/roi_pool.h"
#include "../../ops.h"
#include "sparse_pool.cuh"

// "R-FCN" (Dai et al., 2016), section 2: bin (ph, pw) of channel c reads channel
// (c * pooled_height + ph) * pooled_width + pw of the map alone. PSRoIAlign and PSRoIPool differ in
// their rules of an axis only; both ops are here.
namespace detops::cuda {
namespace {

template <typename A>
struct PSParams {
  const A* rois;  // [K, 5]
  A scale;
  int64_t images, pooled_height, pooled_width, sampling_ratio, height, width;
};

template <typename A>
struct AlignRule {
  __device__ static math::RoIAxis<A> axis(const PSParams<A>& p, A low, A high, int64_t pooled) {
    return math::roi_axis(low, high, p.scale, true, pooled, p.sampling_ratio);
  }
};

template <typename A>
struct PoolRule {
  __device__ static math::PoolAxis<A> axis(const PSParams<A>& p, A low, A high, int64_t pooled) {
    return math::pool_axis(low, high, p.scale, 0, pooled);
  }
};

template <typename Rule, typename A_>
struct PSSampling {
  using A = A_;
  PSParams<A> p;
  int64_t classes = 1;

  __device__ int64_t image(int64_t k) const { return image_of(p.rois + 5 * k, p.images); }
  __device__ auto rows(int64_t k) const {
    return Rule::axis(p, p.rois[5 * k + 2], p.rois[5 * k + 4], p.pooled_height);
  }
  __device__ auto cols(int64_t k) const {
    return Rule::axis(p, p.rois[5 * k + 1], p.rois[5 * k + 3], p.pooled_width);
  }

  __device__ math::Rectangle bounds(int64_t k, int64_t) const {
    const auto y = rows(k), x = cols(k);
    const double top = y.start, bottom = top + double(p.pooled_height) * double(y.bin);
    const double left = x.start, right = left + double(p.pooled_width) * double(x.bin);
    return {math::min(top, bottom), math::max(top, bottom), math::min(left, right),
            math::max(left, right)};
  }

  __device__ int64_t most_taps(int64_t k) const {
    return math::most_pixels(rows(k)) * math::most_pixels(cols(k));
  }

  template <typename Visit>
  __device__ A visit_bin(int64_t k, int64_t, int64_t ph, int64_t pw, const math::Rectangle& reach,
                         Visit&& visit) const {
    math::visit_pixels(rows(k), ph, p.height, reach.top, reach.bottom, [&](int64_t y, A wy) {
      math::visit_pixels(cols(k), pw, p.width, reach.left, reach.right,
                         [&](int64_t x, A wx) { visit(y, x, wy * wx); });
    });
    return 1;
  }
};

struct Pooling {
  const char* op;
  double scale;
  int64_t sampling_ratio;
};

template <typename Rule, typename A>
PSSampling<Rule, A> make_sampling(const Pooling& pooling, const Tensor& rois, const Tensor& pooled,
                                  const Tensor& maps) {
  return {{rois.const_data_ptr<A>(), static_cast<A>(pooling.scale), maps.size(0), pooled.size(2),
           pooled.size(3), pooling.sampling_ratio, maps.size(2), maps.size(3)}};
}

template <template <typename> class Rule>
void run_forward(const Pooling& pooling, const Tensor& input, const Tensor& rois, Tensor& output) {
  if (input.numel() == 0) {  // no image that a batch index could name
    output.zero_();
    return;
  }
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor wide_rois = wide(rois, input.scalar_type());
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    sparse_pool_forward(pooling.op,
                        sparse_pool_params<scalar_t>(output, maps, output.size(2), output.size(3)),
                        make_sampling<Rule<A>, A>(pooling, wide_rois, output, maps), maps, output);
  });
}

template <template <typename> class Rule>
void run_backward(const Pooling& pooling, const Tensor& grad, const Tensor& rois, Tensor& maps) {
  const Tensor pooled = grad.contiguous(maps.suggest_memory_format());
  const Tensor wide_rois = wide(rois, grad.scalar_type());
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    sparse_pool_backward(pooling.op,
                         sparse_pool_params<scalar_t>(pooled, maps, pooled.size(2), pooled.size(3)),
                         make_sampling<Rule<A>, A>(pooling, wide_rois, pooled, maps), pooled, maps);
  });
}

}  // namespace

void ps_roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                          int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                          Tensor& output) {
  run_forward<AlignRule>({"ps_roi_align", spatial_scale, sampling_ratio}, input, rois, output);
}

void ps_roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                           int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                           int64_t channels, int64_t height, int64_t width, int64_t sampling_ratio,
                           Tensor& map) {
  run_backward<AlignRule>({"ps_roi_align_backward", spatial_scale, sampling_ratio}, grad, rois,
                          map);
}

void ps_roi_pool_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                         int64_t pooled_height, int64_t pooled_width, Tensor& output) {
  run_forward<PoolRule>({"ps_roi_pool", spatial_scale, 0}, input, rois, output);
}

void ps_roi_pool_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                          int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                          int64_t channels, int64_t height, int64_t width, Tensor& map) {
  run_backward<PoolRule>({"ps_roi_pool_backward", spatial_scale, 0}, grad, rois, map);
}

}  // namespace detops::cuda
