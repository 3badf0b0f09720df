// SPDX-License-Identifier: MIT
#include "../math/axpy.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include "../ops.h"
#include "launch.cuh"
#include "vector.cuh"

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
    const auto outer = load<k>(grad + i);
    Vector<T, k> to_x, to_y;
    for (int j = 0; j < k; ++j) {
      Wide x, y;
      math::axpy_gradient(alpha, Wide(outer.at[j]), x, y);
      to_x.at[j] = T(x);
      to_y.at[j] = T(y);
    }
    store(grad_x + i, to_x);
    store(grad_y + i, to_y);
  });
}

}  // namespace

Tensor axpy_forward(const Tensor& x, const Tensor& y, double alpha) {
  const c10::OptionalDeviceGuard guard(x.device());
  Tensor output = meta::axpy_forward(x, y, alpha);
  if (output.numel() == 0) return output;
  const Tensor left = x.contiguous(), right = y.contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "detops.axpy", [&] {
    const auto *a = left.const_data_ptr<scalar_t>(), *b = right.const_data_ptr<scalar_t>();
    auto* out = output.mutable_data_ptr<scalar_t>();
    with_vector<scalar_t>(0, {a, b, out}, [&](auto n) {
      launch("axpy", axpy_kernel<n, scalar_t, at::opmath_type<scalar_t>>,
             blocks_for(output.numel(), kThreads * n), a, b, at::opmath_type<scalar_t>(alpha), out,
             output.numel());
    });
  });
  return output;
}

std::tuple<Tensor, Tensor> axpy_backward(const Tensor& grad, double alpha) {
  const c10::OptionalDeviceGuard guard(grad.device());
  auto results = meta::axpy_backward(grad, alpha);
  if (grad.numel() == 0) return results;
  const Tensor outer = grad.contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, grad.scalar_type(), "detops.axpy_backward", [&] {
        const auto* g = outer.const_data_ptr<scalar_t>();
        auto* to_x = std::get<0>(results).mutable_data_ptr<scalar_t>();
        auto* to_y = std::get<1>(results).mutable_data_ptr<scalar_t>();
        with_vector<scalar_t>(0, {g, to_x, to_y}, [&](auto n) {
          launch("axpy_backward", axpy_backward_kernel<n, scalar_t, at::opmath_type<scalar_t>>,
                 blocks_for(grad.numel(), kThreads * n), g, at::opmath_type<scalar_t>(alpha), to_x,
                 to_y, grad.numel());
        });
      });
  return results;
}

}  // namespace detops::cuda
