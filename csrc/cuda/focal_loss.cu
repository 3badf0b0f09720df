// SPDX-License-Identifier: MIT
#include "../math/focal_loss.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include "../ops.h"
#include "launch.cuh"

namespace detops::cuda {
namespace {

template <math::Focus focus, typename T, typename A>
__global__ void focal_loss_kernel(math::Focal<A> f, const T* inputs, const T* targets,
                                  int64_t count, T* losses) {
  DETOPS_FOR_EACH(i, count) {
    losses[i] = T(math::focal::loss<focus>(f, A(inputs[i]), A(targets[i])));
  }
}

// Gradients are `step` apart: 0 where there is one for all.
template <math::Focus focus, typename T, typename A>
__global__ void focal_loss_backward_kernel(math::Focal<A> f, const T* grad, int64_t step,
                                           const T* inputs, const T* targets, int64_t count,
                                           T* to_inputs) {
  DETOPS_FOR_EACH(i, count) {
    to_inputs[i] = T(A(grad[i * step]) * math::focal::slope<focus>(f, A(inputs[i]), A(targets[i])));
  }
}

void launch_forward(const Tensor& x, const Tensor& t, double alpha, double gamma,
                    const Tensor& output) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, x.scalar_type(), "detops.sigmoid_focal_loss", [&] {
        using wide_t = at::opmath_type<scalar_t>;
        const auto f = math::focal_of<wide_t>(alpha, gamma);
        math::with_focus(math::focus_of(gamma), [&](auto focus) {
          launch("sigmoid_focal_loss", focal_loss_kernel<decltype(focus)::value, scalar_t, wide_t>,
                 blocks_for(x.numel()), f, x.const_data_ptr<scalar_t>(),
                 t.const_data_ptr<scalar_t>(), x.numel(), output.mutable_data_ptr<scalar_t>());
        });
      });
}

}  // namespace

Tensor sigmoid_focal_loss_forward(const Tensor& inputs, const Tensor& targets, double alpha,
                                  double gamma) {
  const at::cuda::OptionalCUDAGuard guard(inputs.device());
  Tensor output = meta::sigmoid_focal_loss_forward(inputs, targets, alpha, gamma);
  if (output.numel() == 0) return output;
  const at::ScalarType type = output.scalar_type();
  launch_forward(as_type(inputs, type).contiguous(), as_type(targets, type).contiguous(), alpha,
                 gamma, output);
  return output;
}

Tensor sigmoid_focal_loss_sum(const Tensor& inputs, const Tensor& targets, double alpha,
                              double gamma) {
  const at::cuda::OptionalCUDAGuard guard(inputs.device());
  Tensor output = meta::sigmoid_focal_loss_sum(inputs, targets, alpha, gamma);
  const at::ScalarType type = output.scalar_type();
  const Tensor x = as_type(inputs, type).contiguous(), t = as_type(targets, type).contiguous();
  if (x.numel() == 0) return output.zero_();
  const Tensor losses = at::empty_like(x);
  launch_forward(x, t, alpha, gamma, losses);
  return losses.sum();  // its order is fixed: no atomics
}

Tensor sigmoid_focal_loss_backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                                   double alpha, double gamma) {
  const at::cuda::OptionalCUDAGuard guard(inputs.device());
  const Tensor output = meta::sigmoid_focal_loss_backward(grad, inputs, targets, alpha, gamma);
  if (output.numel() == 0) return output;
  const at::ScalarType type = at::promote_types(inputs.scalar_type(), targets.scalar_type());
  const Tensor x = as_type(inputs, type).contiguous(), t = as_type(targets, type).contiguous();
  const Tensor to_inputs = as_type(output, type);  // itself, unless of another dtype
  const bool constant = is_constant(grad);
  const Tensor outer = as_type(constant ? grad.view(-1).narrow(0, 0, 1) : grad, type).contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, type, "detops.sigmoid_focal_loss_backward", [&] {
        using wide_t = at::opmath_type<scalar_t>;
        const auto f = math::focal_of<wide_t>(alpha, gamma);
        math::with_focus(math::focus_of(gamma), [&](auto focus) {
          launch("sigmoid_focal_loss_backward",
                 focal_loss_backward_kernel<decltype(focus)::value, scalar_t, wide_t>,
                 blocks_for(x.numel()), f, outer.const_data_ptr<scalar_t>(), constant ? 0 : 1,
                 x.const_data_ptr<scalar_t>(), t.const_data_ptr<scalar_t>(), x.numel(),
                 to_inputs.mutable_data_ptr<scalar_t>());
        });
      });
  return as_type(to_inputs, output.scalar_type());
}

}  // namespace detops::cuda
