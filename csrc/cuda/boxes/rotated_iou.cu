// SPDX-License-Identifier: MIT
#include "../../math/rotated_box.h"

#include "../../boxes/box_lists.h"
#include "rotated_boxes.cuh"

namespace detops::cuda {
namespace {

template <math::Base base, typename T>
__global__ void box_iou_rotated_kernel(const RotatedBox* a, int64_t n, const RotatedBox* b,
                                       int64_t m, T* out) {
  DETOPS_FOR_EACH(i, n * m) {
    const double iou = math::rotated::iou<base>(a[i / m], b[i % m]);
    out[i] = iou == iou ? static_cast<T>(iou) : T(0);
  }
}

template <math::Base base, typename T>
__global__ void rotated_iou_kernel(const T* a, const T* b, int64_t count, T* ratios) {
  DETOPS_FOR_EACH(i, count) {
    const double ratio =
        math::rotated::iou<base>(math::rotated_box(a + 5 * i), math::rotated_box(b + 5 * i));
    ratios[i] = ratio == ratio ? static_cast<T>(ratio) : T(0);
  }
}

template <math::Base base, typename T>
__global__ void rotated_iou_backward_kernel(const T* grad, const T* a, const T* b, int64_t count,
                                            T* to_a, T* to_b) {
  DETOPS_FOR_EACH(i, count) {
    math::rotated::iou_gradient<base>(math::rotated_box(a + 5 * i), math::rotated_box(b + 5 * i),
                                      double(grad[i]), to_a + 5 * i, to_b + 5 * i);
  }
}

}  // namespace

void box_iou_rotated(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                     Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    const Tensor a = rotated_boxes<scalar_t>(lists.first);
    const Tensor b = rotated_boxes<scalar_t>(lists.second);
    math::with_base(overlap_base(mode), [&](auto base) {
      launch(box_iou_rotated_kernel<base, scalar_t>, blocks_for(output.numel()), a, a.size(0), b,
             b.size(0), output);
    });
  });
}

void rotated_iou_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                         Tensor& ratios) {
  const BoxLists lists(boxes1, boxes2, ratios.scalar_type());
  DETOPS_WIDE_SWITCH(ratios.scalar_type(), [&] {
    math::with_base(overlap_base(mode), [&](auto base) {
      launch(rotated_iou_kernel<base, scalar_t>, blocks_for(ratios.numel()), lists.first,
             lists.second, ratios.numel(), ratios);
    });
  });
}

void rotated_iou_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                          std::string_view mode, Tensor& grad1, Tensor& grad2) {
  const BoxListGradients lists(grad, boxes1, boxes2);
  DETOPS_WIDE_SWITCH(lists.type(), [&] {
    math::with_base(overlap_base(mode), [&](auto base) {
      launch(rotated_iou_backward_kernel<base, scalar_t>, blocks_for(grad.numel()), lists.grad,
             lists.first, lists.second, grad.numel(), grad1, grad2);
    });
  });
}

}  // namespace detops::cuda
