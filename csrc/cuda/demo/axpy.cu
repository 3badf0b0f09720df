// SPDX-License-Identifier: MIT
#include "../../math/axpy.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

template <typename T, typename Wide>
__global__ void axpy_kernel(const T* x, const T* y, Wide alpha, T* out, int64_t count) {
  DETOPS_FOR_EACH(i, count) { out[i] = T(math::axpy(alpha, Wide(x[i]), Wide(y[i]))); }
}

template <typename T, typename Wide>
__global__ void axpy_backward_kernel(const T* grad, Wide alpha, T* grad_x, T* grad_y,
                                     int64_t count) {
  DETOPS_FOR_EACH(i, count) {
    Wide x, y;
    math::axpy_gradient(alpha, Wide(grad[i]), x, y);
    grad_x[i] = T(x);
    grad_y[i] = T(y);
  }
}

}  // namespace

void axpy_forward(const Tensor& x, const Tensor& y, double alpha, Tensor& output) {
  const Tensor left = x.contiguous(), right = y.contiguous();
  DETOPS_FLOAT_SWITCH(x.scalar_type(), [&] {
    launch(axpy_kernel<scalar_t, accumulate_t<scalar_t>>, blocks_for(output.numel()),
           left.const_data_ptr<scalar_t>(), right.const_data_ptr<scalar_t>(),
           accumulate_t<scalar_t>(alpha), output.mutable_data_ptr<scalar_t>(), output.numel());
  });
}

void axpy_backward(const Tensor& grad, double alpha, Tensor& to_x, Tensor& to_y) {
  const Tensor outer = grad.contiguous();
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    launch(axpy_backward_kernel<scalar_t, accumulate_t<scalar_t>>, blocks_for(grad.numel()), outer,
           alpha, to_x, to_y, grad.numel());
  });
}

}  // namespace detops::cuda
