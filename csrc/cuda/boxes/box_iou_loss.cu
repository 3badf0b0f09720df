// SPDX-License-Identifier: MIT
#include "../../boxes/box_lists.h"
#include "../../math/overlap.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

// Overlaps of matched boxes, or their losses.
template <math::Overlap kind, bool loss, typename T>
__global__ void box_pairs_kernel(const math::Box<T>* a, const math::Box<T>* b, int64_t count, T eps,
                                 T* values) {
  DETOPS_FOR_EACH(i, count) {
    const auto first = math::overlap_box<kind>(a[i]), second = math::overlap_box<kind>(b[i]);
    values[i] = loss ? math::pairwise::overlap_loss<kind, T>(first, second, eps)
                     : math::pairwise::overlap<kind, T>(first, second, eps);
  }
}

template <math::Overlap kind, bool loss, typename T>
__global__ void box_pairs_backward_kernel(const T* grad, const math::Box<T>* a,
                                          const math::Box<T>* b, int64_t count, T eps,
                                          math::Box<T>* grad_a, math::Box<T>* grad_b) {
  DETOPS_FOR_EACH(i, count) {
    const auto first = math::overlap_box<kind>(a[i]), second = math::overlap_box<kind>(b[i]);
    math::Box<T> da{}, db{};
    if constexpr (loss) {
      math::pairwise::overlap_loss_gradient<kind, T>(first, second, eps, grad[i], da, db);
    } else {
      math::pairwise::overlap_gradient<kind, T>(first, second, eps, grad[i], da, db);
    }
    grad_a[i] = da;
    grad_b[i] = db;
  }
}

template <bool loss>
void forward(const char* op, const Tensor& boxes1, const Tensor& boxes2, std::string_view kind,
             double eps, Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    using T = scalar_t;
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      launch(op, box_pairs_kernel<constant, loss, T>, blocks_for(output.numel()),
             rows<math::Box, T>(lists.first), rows<math::Box, T>(lists.second), output.numel(),
             static_cast<T>(eps), output.mutable_data_ptr<T>());
    });
  });
}

template <bool loss>
void backward(const char* op, const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
              std::string_view kind, double eps, Tensor& grad1, Tensor& grad2) {
  const BoxListGradients lists(grad, boxes1, boxes2, grad1, grad2);
  DETOPS_WIDE_SWITCH(lists.type(), [&] {
    using T = scalar_t;
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      launch(op, box_pairs_backward_kernel<constant, loss, T>, blocks_for(lists.grad.numel()),
             lists.grad.const_data_ptr<T>(), rows<math::Box, T>(lists.first),
             rows<math::Box, T>(lists.second), lists.grad.numel(), static_cast<T>(eps),
             mutable_rows<math::Box, T>(lists.to_first),
             mutable_rows<math::Box, T>(lists.to_second));
    });
  });
  lists.store(grad1, grad2);
}

}  // namespace

void box_iou_aligned_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind,
                             double eps, Tensor& output) {
  forward<false>("box_iou", boxes1, boxes2, kind, eps, output);
}

void box_iou_aligned_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                              std::string_view kind, double eps, Tensor& grad1, Tensor& grad2) {
  backward<false>("box_iou", grad, boxes1, boxes2, kind, eps, grad1, grad2);
}

void box_iou_loss_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind,
                          double eps, Tensor& loss) {
  forward<true>("box_iou_loss", boxes1, boxes2, kind, eps, loss);
}

void box_iou_loss_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                           std::string_view kind, double eps, Tensor& grad1, Tensor& grad2) {
  backward<true>("box_iou_loss", grad, boxes1, boxes2, kind, eps, grad1, grad2);
}

}  // namespace detops::cuda
