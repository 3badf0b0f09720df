// SPDX-License-Identifier: MIT
#include "../../math/overlap.h"
#include "../../ops.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

template <math::Overlap kind, typename T>
__global__ void box_iou_loss_kernel(const math::Box<T>* a, const math::Box<T>* b, int64_t count,
                                    T eps, T* loss) {
  DETOPS_FOR_EACH(i, count) {
    loss[i] = math::pairwise::overlap_loss<kind, T>(math::overlap_box<kind>(a[i]),
                                                    math::overlap_box<kind>(b[i]), eps);
  }
}

template <math::Overlap kind, typename T>
__global__ void box_iou_loss_backward_kernel(const T* grad, const math::Box<T>* a,
                                             const math::Box<T>* b, int64_t count, T eps,
                                             math::Box<T>* grad_a, math::Box<T>* grad_b) {
  DETOPS_FOR_EACH(i, count) {
    math::pairwise::overlap_loss_gradient<kind, T>(math::overlap_box<kind>(a[i]),
                                                   math::overlap_box<kind>(b[i]), eps, grad[i],
                                                   grad_a[i], grad_b[i]);
  }
}

template <math::Overlap kind, typename T>
void launch_forward(const Tensor& a, const Tensor& b, double eps, const Tensor& loss) {
  launch("box_iou_loss", box_iou_loss_kernel<kind, T>, blocks_for(loss.numel()),
         rows<math::Box, T>(a), rows<math::Box, T>(b), loss.numel(), static_cast<T>(eps),
         loss.mutable_data_ptr<T>());
}

template <math::Overlap kind, typename T>
void launch_backward(const Tensor& grad, const Tensor& a, const Tensor& b, double eps,
                     const Tensor& grad_a, const Tensor& grad_b) {
  launch("box_iou_loss", box_iou_loss_backward_kernel<kind, T>, blocks_for(grad.numel()),
         grad.const_data_ptr<T>(), rows<math::Box, T>(a), rows<math::Box, T>(b), grad.numel(),
         static_cast<T>(eps), mutable_rows<math::Box, T>(grad_a),
         mutable_rows<math::Box, T>(grad_b));
}

}  // namespace

void box_iou_loss_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind,
                          double eps, Tensor& loss) {
  const Tensor first = boxes1.to(loss.scalar_type()).contiguous();
  const Tensor second = boxes2.to(loss.scalar_type()).contiguous();
  const math::Overlap which = overlap_kind(kind);
  DETOPS_WIDE_SWITCH(loss.scalar_type(), [&] {
    math::with_kind(which, [&](auto constant) {
      launch_forward<constant, scalar_t>(first, second, eps, loss);
    });
  });
}

void box_iou_loss_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                           std::string_view kind, double eps, Tensor& grad1, Tensor& grad2) {
  const ScalarType type = compute_type(promoted_type(boxes1.scalar_type(), boxes2.scalar_type()));
  const Tensor first = boxes1.to(type).contiguous(), second = boxes2.to(type).contiguous();
  const Tensor outer = grad.to(type).contiguous();
  const Tensor to_first = grad1.to(type), to_second = grad2.to(type);  // themselves, mostly
  const math::Overlap which = overlap_kind(kind);
  DETOPS_WIDE_SWITCH(type, [&] {
    math::with_kind(which, [&](auto constant) {
      launch_backward<constant, scalar_t>(outer, first, second, eps, to_first, to_second);
    });
  });
  grad1 = as_type(to_first, grad1.scalar_type());
  grad2 = as_type(to_second, grad2.scalar_type());
}

}  // namespace detops::cuda
