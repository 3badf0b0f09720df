// SPDX-License-Identifier: MIT
#include "../../math/rotated_box.h"

#include "../../boxes/box_lists.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

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

void rotated_iou_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                         Tensor& ratios) {
  const BoxLists lists(boxes1, boxes2, ratios.scalar_type());
  DETOPS_WIDE_SWITCH(ratios.scalar_type(), [&] {
    math::with_base(overlap_base(mode), [&](auto base) {
      launch("rotated_iou", rotated_iou_kernel<decltype(base)::value, scalar_t>,
             blocks_for(ratios.numel()), lists.first.const_data_ptr<scalar_t>(),
             lists.second.const_data_ptr<scalar_t>(), ratios.numel(),
             ratios.mutable_data_ptr<scalar_t>());
    });
  });
}

void rotated_iou_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                          std::string_view mode, Tensor& grad1, Tensor& grad2) {
  const BoxListGradients lists(grad, boxes1, boxes2, grad1, grad2);
  DETOPS_WIDE_SWITCH(lists.type(), [&] {
    math::with_base(overlap_base(mode), [&](auto base) {
      launch("rotated_iou", rotated_iou_backward_kernel<decltype(base)::value, scalar_t>,
             blocks_for(lists.grad.numel()), lists.grad.const_data_ptr<scalar_t>(),
             lists.first.const_data_ptr<scalar_t>(), lists.second.const_data_ptr<scalar_t>(),
             lists.grad.numel(), lists.to_first.mutable_data_ptr<scalar_t>(),
             lists.to_second.mutable_data_ptr<scalar_t>());
    });
  });
  lists.store(grad1, grad2);
}

}  // namespace detops::cuda
