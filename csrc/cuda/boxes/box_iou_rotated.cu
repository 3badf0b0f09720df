// SPDX-License-Identifier: MIT
#include "../../math/rotated_box.h"

#include "../../host/box_lists.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

using RotatedBox = math::RotatedBox<double>;

// Converts boxes, contiguous float32 or float64 [N, 5], to one RotatedBox each.
template <typename T>
Tensor rotated_boxes(const Tensor& boxes) {
  constexpr int64_t kElements = sizeof(RotatedBox) / sizeof(double);
  const Tensor prepared = empty({boxes.size(0), kElements}, boxes.options().dtype(kDouble));
  const T* from = elements(boxes);
  RotatedBox* to = elements(prepared);
  for_each(boxes.size(0), [=] __device__(int64_t i) { to[i] = math::rotated_box(from + 5 * i); });
  return prepared;
}

}  // namespace

void box_iou_rotated(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                     Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  const math::Base base = overlap_base(mode);
  const int64_t m = lists.second.size(0);
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    const Tensor first = rotated_boxes<scalar_t>(lists.first);
    const Tensor second = rotated_boxes<scalar_t>(lists.second);
    const RotatedBox *a = elements(first), *b = elements(second);
    scalar_t* out = elements(output);
    for_each(output.numel(), [=] __device__(int64_t i) {
      const double iou = math::rotated::iou(a[i / m], b[i % m], base);
      out[i] = iou == iou ? static_cast<scalar_t>(iou) : scalar_t(0);
    });
  });
}

void rotated_iou_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                         Tensor& ratios) {
  const BoxLists lists(boxes1, boxes2, ratios.scalar_type());
  const math::Base base = overlap_base(mode);
  DETOPS_WIDE_SWITCH(ratios.scalar_type(), [&] {
    const scalar_t *a = elements(lists.first), *b = elements(lists.second);
    scalar_t* out = elements(ratios);
    for_each(ratios.numel(), [=] __device__(int64_t i) {
      const double ratio =
          math::rotated::iou(math::rotated_box(a + 5 * i), math::rotated_box(b + 5 * i), base);
      out[i] = ratio == ratio ? static_cast<scalar_t>(ratio) : scalar_t(0);
    });
  });
}

void rotated_iou_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                          std::string_view mode, Tensor& grad1, Tensor& grad2) {
  const BoxListGradients lists(grad, boxes1, boxes2);
  const math::Base base = overlap_base(mode);
  DETOPS_WIDE_SWITCH(lists.type(), [&] {
    const scalar_t *g = elements(lists.grad), *a = elements(lists.first),
                   *b = elements(lists.second);
    scalar_t *to_a = elements(grad1), *to_b = elements(grad2);
    for_each(lists.grad.numel(), [=] __device__(int64_t i) {
      math::rotated::iou_gradient(math::rotated_box(a + 5 * i), math::rotated_box(b + 5 * i), base,
                                  double(g[i]), to_a + 5 * i, to_b + 5 * i);
    });
  });
}

}  // namespace detops::cuda
