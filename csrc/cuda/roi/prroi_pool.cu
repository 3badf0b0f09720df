// SPDX-License-Identifier: MIT
#include "../../math/prroi_pool.h"

#include "sparse_pool.cuh"

namespace detops::cuda {
namespace {

struct PreciseRule {
  template <typename A>
  __device__ math::PrRoIAxis<A> axis(A low, A high, A scale, int64_t pooled) const {
    return math::prroi_axis(low, high, scale, pooled);
  }
};

template <typename A>
using PrRoIPooling = BoxPooling<PreciseRule, A>;

// One block per RoI. Its threads split the channels and sum in a fixed order.
template <typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    prroi_boxes_kernel(PrRoIPooling<A> pooling, const T* grad, const T* maps, A* result) {
  const int self = static_cast<int>(threadIdx.x);
  const RoIPooling<A>& p = pooling.p;
  const Strides &ms = p.maps.strides, &gs = p.pooled.strides;
  for (int64_t k = blockIdx.x; k < p.pooled.n; k += gridDim.x) {
    const int64_t image = p.image(k);
    const auto rows = pooling.rows(k), cols = pooling.cols(k);
    A by[4] = {};
    for (int64_t c = self; image >= 0 && c < p.pooled.c; c += kThreads) {
      const T* map = maps + ms.at(image, c, 0, 0);
      for (int64_t bin = 0; bin < p.pooled.pixels(); ++bin) {
        const int64_t ph = bin / p.pooled.w, pw = bin % p.pooled.w;
        const A g = static_cast<A>(grad[gs.at(k, c, ph, pw)]);
        const auto visit_row = [&](int64_t y, A weight_y, A low_y, A high_y) {
          A y1, y2;
          math::box_slopes(low_y, high_y, ph, p.pooled.h, p.scale, y1, y2);
          const auto visit_col = [&](int64_t x, A weight_x, A low_x, A high_x) {
            A x1, x2;
            math::box_slopes(low_x, high_x, pw, p.pooled.w, p.scale, x1, x2);
            const A product = g * static_cast<A>(map[y * ms.h + x * ms.w]);
            by[0] += weight_y * x1 * product;
            by[1] += y1 * weight_x * product;
            by[2] += weight_y * x2 * product;
            by[3] += y2 * weight_x * product;
          };
          math::visit_slopes(cols, pw, p.maps.w, 0.0, double(p.maps.w), visit_col);
        };
        math::visit_slopes(rows, ph, p.maps.h, 0.0, double(p.maps.h), visit_row);
      }
    }
    sum_over_block(by);
    if (self == 0) {
      result[5 * k] = 0;
      for (int i = 0; i < 4; ++i) result[5 * k + 1 + i] = by[i];
    }
  }
}

}  // namespace

void prroi_pool_forward(const Tensor& input, const Tensor& boxes, double spatial_scale, int64_t,
                        int64_t, Tensor& output) {
  sparse_pool_forward<PrRoIPooling>(input, boxes, spatial_scale, output, PreciseRule());
}

void prroi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& boxes,
                         double spatial_scale, bool input_wanted, bool boxes_wanted,
                         Tensor& to_input, Tensor& to_boxes) {
  const ScalarType type = input.scalar_type();
  const MemoryFormat format = input.suggest_memory_format();
  const Tensor maps = input.contiguous(format), pooled = grad.to(type).contiguous(format);
  const Tensor rois = wide(boxes, type);
  if (input_wanted && to_input.numel() > 0) {
    sparse_pool_backward<PrRoIPooling>(pooled, rois, spatial_scale, to_input, PreciseRule());
  }
  if (!boxes_wanted || to_boxes.numel() == 0) return;
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    const PrRoIPooling<A> pooling{{rois, spatial_scale, pooled, maps}, {}};
    launch(prroi_boxes_kernel<scalar_t, A>, blocks_for(boxes.size(0), 1), pooling, pooled, maps,
           to_boxes);
  });
}

}  // namespace detops::cuda
