// SPDX-License-Identifier: MIT
#include "../../math/rotated_box.h"

#include "../../boxes/box_lists.h"
#include "rotated_boxes.h"

#define DETOPS_KERNELS "../boxes/rotated_iou.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kPairsPerThread = 1 << 10, kGradientsPerThread = 1 << 8;

}  // namespace

void rotated_iou_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                         Tensor& ratios) {
  const BoxLists lists(boxes1, boxes2, ratios.scalar_type());
  DETOPS_WIDE_SWITCH(ratios.scalar_type(), [&] {
    const scalar_t* a = lists.first.const_data_ptr<scalar_t>();
    const scalar_t* b = lists.second.const_data_ptr<scalar_t>();
    scalar_t* out = ratios.mutable_data_ptr<scalar_t>();
    math::with_base(overlap_base(mode), [&](auto base) {
      const auto kernel = DETOPS_IN_USE(rotated_iou_pairs<decltype(base)::value, scalar_t>);
      parallel_for(0, ratios.numel(), kPairsPerThread, [&](int64_t begin, int64_t end) {
        kernel(a + 5 * begin, b + 5 * begin, end - begin, out + begin);
      });
    });
  });
}

void rotated_iou_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                          std::string_view mode, Tensor& grad1, Tensor& grad2) {
  const BoxListGradients lists(grad, boxes1, boxes2, grad1, grad2);
  DETOPS_WIDE_SWITCH(lists.type(), [&] {
    const scalar_t* g = lists.grad.const_data_ptr<scalar_t>();
    const scalar_t* a = lists.first.const_data_ptr<scalar_t>();
    const scalar_t* b = lists.second.const_data_ptr<scalar_t>();
    scalar_t* to_a = lists.to_first.mutable_data_ptr<scalar_t>();
    scalar_t* to_b = lists.to_second.mutable_data_ptr<scalar_t>();
    math::with_base(overlap_base(mode), [&](auto base) {
      parallel_for(0, lists.grad.numel(), kGradientsPerThread, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          math::rotated::iou_gradient<decltype(base)::value>(
              math::rotated_box(a + 5 * i), math::rotated_box(b + 5 * i), double(g[i]),
              to_a + 5 * i, to_b + 5 * i);
        }
      });
    });
  });
  lists.store(grad1, grad2);
}

}  // namespace detops::cpu
