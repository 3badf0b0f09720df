// SPDX-License-Identifier: MIT
#include "../../math/axpy.h"
#include "../../ops.h"

namespace detops::cpu {
namespace {

constexpr int64_t kGrain = 32768;

}  // namespace

void axpy_forward(const Tensor& x, const Tensor& y, double alpha, Tensor& output) {
  const Tensor left = x.contiguous(), right = y.contiguous();
  DETOPS_FLOAT_SWITCH(x.scalar_type(), [&] {
    using wide_t = accumulate_t<scalar_t>;
    const scalar_t *a = left.const_data_ptr<scalar_t>(), *b = right.const_data_ptr<scalar_t>();
    scalar_t* out = output.mutable_data_ptr<scalar_t>();
    parallel_for(output.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        out[i] = math::axpy(wide_t(alpha), wide_t(a[i]), wide_t(b[i]));
      }
    });
  });
}

void axpy_backward(const Tensor& grad, double alpha, Tensor& to_x, Tensor& to_y) {
  const Tensor upstream = grad.contiguous();
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using wide_t = accumulate_t<scalar_t>;
    const scalar_t* g = upstream.const_data_ptr<scalar_t>();
    scalar_t *gx = to_x.mutable_data_ptr<scalar_t>(), *gy = to_y.mutable_data_ptr<scalar_t>();
    parallel_for(upstream.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        wide_t x, y;
        math::axpy_gradient(wide_t(alpha), wide_t(g[i]), x, y);
        gx[i] = x;
        gy[i] = y;
      }
    });
  });
}

}  // namespace detops::cpu
