// SPDX-License-Identifier: MIT
#include "../../math/prroi_pool.h"

#include "../../ops.h"
#include "sparse_pool.cuh"

namespace detops::cuda {
namespace {

template <typename A_>
struct PrRoISampling {
  using A = A_;
  const A* rois;  // [K, 5]
  A scale;
  int64_t images, pooled_height, pooled_width, height, width;
  int64_t classes = 1;

  __device__ int64_t image(int64_t k) const { return image_of(rois + 5 * k, images); }
  __device__ math::PrRoIAxis<A> rows(int64_t k) const {
    return math::prroi_axis(rois[5 * k + 2], rois[5 * k + 4], scale, pooled_height);
  }
  __device__ math::PrRoIAxis<A> cols(int64_t k) const {
    return math::prroi_axis(rois[5 * k + 1], rois[5 * k + 3], scale, pooled_width);
  }

  __device__ math::Rectangle bounds(int64_t k, int64_t) const {
    const auto y = rows(k), x = cols(k);
    const double top = y.start, left = x.start;
    return {top, top + double(pooled_height) * double(y.bin), left,
            left + double(pooled_width) * double(x.bin)};
  }

  __device__ int64_t most_taps(int64_t k) const {
    return math::most_pixels(rows(k)) * math::most_pixels(cols(k));
  }

  template <typename Visit>
  __device__ A visit_bin(int64_t k, int64_t, int64_t ph, int64_t pw, const math::Rectangle& reach,
                         Visit&& visit) const {
    math::visit_taps(rows(k), ph, height, reach.top, reach.bottom, [&](int64_t y, A wy) {
      math::visit_taps(cols(k), pw, width, reach.left, reach.right,
                       [&](int64_t x, A wx) { visit(y, x, wy * wx); });
    });
    return 1;
  }
};

// A block owns a RoI: its threads share the channels, and add up in a fixed order.
template <typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    prroi_boxes_kernel(SparsePoolParams<T> p, PrRoISampling<A> s, const T* grad, const T* maps,
                       A* result) {
  __shared__ A sums[4][kThreads];
  const int self = static_cast<int>(threadIdx.x);
  const Strides ms = p.map_strides(), gs = p.pooled_strides();
  for (int64_t k = blockIdx.x; k < p.rois; k += gridDim.x) {
    const int64_t image = s.image(k);
    const auto rows = s.rows(k), cols = s.cols(k);
    A by[4] = {};
    for (int64_t c = self; image >= 0 && c < p.channels; c += kThreads) {
      const T* map = maps + image * ms.n + c * ms.c;
      for (int64_t bin = 0; bin < p.pooled_height * p.pooled_width; ++bin) {
        const int64_t ph = bin / p.pooled_width, pw = bin % p.pooled_width;
        const A g = static_cast<A>(grad[k * gs.n + c * gs.c + ph * gs.h + pw * gs.w]);
        const auto visit_row = [&](int64_t y, A weight_y, A low_y, A high_y) {
          A y1, y2;
          math::slopes_of_box(low_y, high_y, ph, p.pooled_height, s.scale, y1, y2);
          const auto visit_col = [&](int64_t x, A weight_x, A low_x, A high_x) {
            A x1, x2;
            math::slopes_of_box(low_x, high_x, pw, p.pooled_width, s.scale, x1, x2);
            const A product = g * static_cast<A>(map[y * ms.h + x * ms.w]);
            by[0] += weight_y * x1 * product;
            by[1] += y1 * weight_x * product;
            by[2] += weight_y * x2 * product;
            by[3] += y2 * weight_x * product;
          };
          math::visit_slopes(cols, pw, p.width, 0.0, double(p.width), visit_col);
        };
        math::visit_slopes(rows, ph, p.height, 0.0, double(p.height), visit_row);
      }
    }
    __syncthreads();
    for (int i = 0; i < 4; ++i) sums[i][self] = by[i];
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      for (int i = 0; i < 4 && self < half; ++i) sums[i][self] += sums[i][self + half];
    }
    __syncthreads();
    if (self < 5) result[5 * k + self] = self == 0 ? A(0) : sums[self - 1][0];
  }
}

template <typename A>
PrRoISampling<A> make_sampling(const Tensor& rois, double spatial_scale, const Tensor& pooled,
                               const Tensor& maps) {
  return {rois.const_data_ptr<A>(),
          static_cast<A>(spatial_scale),
          maps.size(0),
          pooled.size(2),
          pooled.size(3),
          maps.size(2),
          maps.size(3)};
}

}  // namespace

void prroi_pool_forward(const Tensor& input, const Tensor& boxes, double spatial_scale, int64_t,
                        int64_t, Tensor& output) {
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor rois = wide(boxes, input.scalar_type());
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    sparse_pool_forward("prroi_pool", sparse_pool_params<scalar_t>(output, maps, 1, 1),
                        make_sampling<accumulate_t<scalar_t>>(rois, spatial_scale, output, maps),
                        maps, output);
  });
}

void prroi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& boxes,
                         double spatial_scale, bool input_wanted, bool boxes_wanted,
                         Tensor& to_input, Tensor& to_boxes) {
  constexpr const char* kOp = "prroi_pool_backward";
  const ScalarType type = input.scalar_type();
  const MemoryFormat format = input.suggest_memory_format();
  const Tensor maps = input.contiguous(format), pooled = as_type(grad, type).contiguous(format);
  const Tensor rois = wide(boxes, type);
  const Tensor slopes = as_type(to_boxes, compute_type(type));
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    const auto sampling = make_sampling<A>(rois, spatial_scale, pooled, maps);
    const auto params = sparse_pool_params<scalar_t>(pooled, maps, 1, 1);
    if (input_wanted && to_input.numel() > 0) {
      sparse_pool_backward(kOp, params, sampling, pooled, to_input);
    }
    if (!boxes_wanted || slopes.numel() == 0) return;
    launch(kOp, prroi_boxes_kernel<scalar_t, A>, blocks_for(boxes.size(0), 1), params, sampling,
           pooled.const_data_ptr<scalar_t>(), maps.const_data_ptr<scalar_t>(),
           slopes.mutable_data_ptr<A>());
  });
  if (boxes_wanted) to_boxes = as_type(slopes, to_boxes.scalar_type());
}

}  // namespace detops::cuda
