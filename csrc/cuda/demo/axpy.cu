// SPDX-License-Identifier: MIT
#include "../../math/axpy.h"
#include "../common/vector.cuh"

namespace detops::cuda {
namespace {

template <int n, typename T, typename Wide>
__global__ void axpy_kernel(const T* x, const T* y, Wide alpha, T* out, int64_t count) {
  for_each_vector<n>(count, [&](int64_t i, auto k) {
    const auto left = load<k>(x + i), right = load<k>(y + i);
    Vector<T, k> sum;
    for (int j = 0; j < k; ++j) {
      sum.at[j] = T(math::axpy(alpha, Wide(left.at[j]), Wide(right.at[j])));
    }
    store(out + i, sum);
  });
}

template <int n, typename T, typename Wide>
__global__ void axpy_backward_kernel(const T* grad, Wide alpha, T* grad_x, T* grad_y,
                                     int64_t count) {
  for_each_vector<n>(count, [&](int64_t i, auto k) {
    const auto upstream = load<k>(grad + i);
    Vector<T, k> to_x, to_y;
    for (int j = 0; j < k; ++j) {
      Wide x, y;
      math::axpy_gradient(alpha, Wide(upstream.at[j]), x, y);
      to_x.at[j] = T(x);
      to_y.at[j] = T(y);
    }
    store(grad_x + i, to_x);
    store(grad_y + i, to_y);
  });
}

}  // namespace

void axpy_forward(const Tensor& x, const Tensor& y, double alpha, Tensor& output) {
  const Tensor left = x.contiguous(), right = y.contiguous();
  const int64_t count = output.numel();
  DETOPS_FLOAT_SWITCH(x.scalar_type(), [&] {
    const scalar_t *a = elements(left), *b = elements(right);
    scalar_t* out = elements(output);
    with_vector<scalar_t>(0, {a, b, out}, [&](auto n) {
      launch(axpy_kernel<n, scalar_t, accumulate_t<scalar_t>>, blocks_for(count, kThreads * n), a,
             b, alpha, out, count);
    });
  });
}

void axpy_backward(const Tensor& grad, double alpha, Tensor& to_x, Tensor& to_y) {
  const Tensor upstream = grad.contiguous();
  const int64_t count = grad.numel();
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    const scalar_t* from = elements(upstream);
    scalar_t *x = elements(to_x), *y = elements(to_y);
    with_vector<scalar_t>(0, {from, x, y}, [&](auto n) {
      launch(axpy_backward_kernel<n, scalar_t, accumulate_t<scalar_t>>,
             blocks_for(count, kThreads * n), from, alpha, x, y, count);
    });
  });
}

}  // namespace detops::cuda
