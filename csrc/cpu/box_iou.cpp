// SPDX-License-Identifier: MIT
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "../math/box.h"
#include "../ops.h"
#include "memory.h"

namespace detops::cpu {
namespace {

constexpr int64_t kPairsPerThread = 1 << 15;

int64_t row_grain(int64_t columns) {
  return std::max<int64_t>(1, kPairsPerThread / std::max<int64_t>(1, columns));
}

// grad_a[i] is the sum over j of grad(i, j) * d iou(a[i], b[j]) / d a[i]: one owner per row.
template <typename T>
void gradient_of_rows(const T* grad, int64_t stride_row, int64_t stride_col, const math::Box<T>* a,
                      int64_t n, const math::Box<T>* b, int64_t m, math::Box<T>* grad_a) {
  at::parallel_for(0, n, row_grain(m), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      math::Box<T> sum{};
      for (int64_t j = 0; j < m; ++j) {
        math::iou_gradient(a[i], b[j], grad[i * stride_row + j * stride_col], sum);
      }
      grad_a[i] = sum;
    }
  });
}

}  // namespace

Tensor box_iou_forward(const Tensor& boxes1, const Tensor& boxes2) {
  Tensor output = meta::box_iou_forward(boxes1, boxes2);
  if (output.numel() == 0) return output;
  expect_writes(output);
  const Tensor first = boxes1.to(output.scalar_type()).contiguous();
  const Tensor second = boxes2.to(output.scalar_type()).contiguous();
  const int64_t n = first.size(0), m = second.size(0);
  AT_DISPATCH_FLOATING_TYPES(output.scalar_type(), "detops.box_iou", [&] {
    using Box = math::Box<scalar_t>;
    const Box* a = reinterpret_cast<const Box*>(first.const_data_ptr<scalar_t>());
    const Box* b = reinterpret_cast<const Box*>(second.const_data_ptr<scalar_t>());
    scalar_t* out = output.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, n, row_grain(m), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < m; ++j) out[i * m + j] = math::iou(a[i], b[j]);
      }
    });
  });
  return output;
}

std::tuple<Tensor, Tensor> box_iou_backward(const Tensor& grad, const Tensor& boxes1,
                                            const Tensor& boxes2) {
  auto [grad1, grad2] = meta::box_iou_backward(grad, boxes1, boxes2);
  const at::ScalarType type =
      compute_type(at::promote_types(boxes1.scalar_type(), boxes2.scalar_type()));
  const Tensor first = boxes1.to(type).contiguous(), second = boxes2.to(type).contiguous();
  const Tensor outer = grad.to(type).contiguous();
  const Tensor to_first = at::empty_like(first), to_second = at::empty_like(second);
  const int64_t n = first.size(0), m = second.size(0);
  AT_DISPATCH_FLOATING_TYPES(type, "detops.box_iou_backward", [&] {
    using Box = math::Box<scalar_t>;
    const Box* a = reinterpret_cast<const Box*>(first.const_data_ptr<scalar_t>());
    const Box* b = reinterpret_cast<const Box*>(second.const_data_ptr<scalar_t>());
    const scalar_t* g = outer.const_data_ptr<scalar_t>();
    gradient_of_rows(g, m, 1, a, n, b, m,
                     reinterpret_cast<Box*>(to_first.mutable_data_ptr<scalar_t>()));
    gradient_of_rows(g, 1, m, b, m, a, n,
                     reinterpret_cast<Box*>(to_second.mutable_data_ptr<scalar_t>()));
  });
  return {grad1.copy_(to_first), grad2.copy_(to_second)};
}

}  // namespace detops::cpu
