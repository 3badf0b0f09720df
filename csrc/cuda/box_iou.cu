// SPDX-License-Identifier: MIT
#include <ATen/Dispatch.h>

#include "../math/box.h"
#include "../ops.h"
#include "launch.cuh"

namespace detops::cuda {
namespace {

template <typename T>
__global__ void box_iou_kernel(const math::Box<T>* a, int64_t n, const math::Box<T>* b, int64_t m,
                               T* out) {
  DETOPS_FOR_EACH(i, n * m) { out[i] = math::iou(a[i / m], b[i % m]); }
}

// One thread owns a box and adds its pairs in order: no atomics, the same bits every run.
template <typename T>
__global__ void box_iou_rows_kernel(const T* grad, int64_t stride_row, int64_t stride_col,
                                    const math::Box<T>* a, int64_t n, const math::Box<T>* b,
                                    int64_t m, math::Box<T>* grad_a) {
  DETOPS_FOR_EACH(i, n) {
    math::Box<T> sum{};
    for (int64_t j = 0; j < m; ++j) {
      math::iou_gradient(a[i], b[j], grad[i * stride_row + j * stride_col], sum);
    }
    grad_a[i] = sum;
  }
}

}  // namespace

Tensor box_iou_forward(const Tensor& boxes1, const Tensor& boxes2) {
  const at::cuda::OptionalCUDAGuard guard(boxes1.device());
  Tensor output = meta::box_iou_forward(boxes1, boxes2);
  if (output.numel() == 0) return output;
  const Tensor first = boxes1.to(output.scalar_type()).contiguous();
  const Tensor second = boxes2.to(output.scalar_type()).contiguous();
  AT_DISPATCH_FLOATING_TYPES(output.scalar_type(), "detops.box_iou", [&] {
    using Box = math::Box<scalar_t>;
    box_iou_kernel<scalar_t>
        <<<blocks_for(output.numel()), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
            reinterpret_cast<const Box*>(first.const_data_ptr<scalar_t>()), first.size(0),
            reinterpret_cast<const Box*>(second.const_data_ptr<scalar_t>()), second.size(0),
            output.mutable_data_ptr<scalar_t>());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return output;
}

std::tuple<Tensor, Tensor> box_iou_backward(const Tensor& grad, const Tensor& boxes1,
                                            const Tensor& boxes2) {
  const at::cuda::OptionalCUDAGuard guard(boxes1.device());
  auto [grad1, grad2] = meta::box_iou_backward(grad, boxes1, boxes2);
  const at::ScalarType type =
      compute_type(at::promote_types(boxes1.scalar_type(), boxes2.scalar_type()));
  const Tensor first = boxes1.to(type).contiguous(), second = boxes2.to(type).contiguous();
  const Tensor outer = grad.to(type).contiguous();
  const Tensor to_first = at::zeros_like(first), to_second = at::zeros_like(second);
  const int64_t n = first.size(0), m = second.size(0);
  if (n * m > 0) {
    AT_DISPATCH_FLOATING_TYPES(type, "detops.box_iou_backward", [&] {
      using Box = math::Box<scalar_t>;
      const auto stream = at::cuda::getCurrentCUDAStream();
      const Box* a = reinterpret_cast<const Box*>(first.const_data_ptr<scalar_t>());
      const Box* b = reinterpret_cast<const Box*>(second.const_data_ptr<scalar_t>());
      const scalar_t* g = outer.const_data_ptr<scalar_t>();
      box_iou_rows_kernel<scalar_t><<<blocks_for(n), kThreads, 0, stream>>>(
          g, m, 1, a, n, b, m, reinterpret_cast<Box*>(to_first.mutable_data_ptr<scalar_t>()));
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      box_iou_rows_kernel<scalar_t><<<blocks_for(m), kThreads, 0, stream>>>(
          g, 1, m, b, m, a, n, reinterpret_cast<Box*>(to_second.mutable_data_ptr<scalar_t>()));
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  }
  return {grad1.copy_(to_first), grad2.copy_(to_second)};
}

}  // namespace detops::cuda
