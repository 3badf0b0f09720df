// SPDX-License-Identifier: MIT
#include "../../host/box_lists.h"
#include "../../math/rotated_box.h"
#include "../common/host.h"
#include "../common/rotated_boxes.h"

#define DETOPS_KERNELS "../boxes/box_iou_rotated.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// Minimum number of pairs per thread: for a matrix, for lists, and for gradients of lists.
constexpr int64_t kPairsPerThread = 1 << 14, kMatchedPairsPerThread = 1 << 10,
                  kGradientsPerThread = 1 << 8;

template <typename T>
Buffer<RotatedBox> rotated_boxes(const T* boxes, int64_t count) {
  Buffer<RotatedBox> result(count);
  for (int64_t i = 0; i < count; ++i) result[i] = math::rotated_box(boxes + 5 * i);
  return result;
}

}  // namespace

void box_iou_rotated(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                     Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  const int64_t n = lists.first.size(0), m = lists.second.size(0);
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    const auto rows = rotated_boxes(lists.first.const_data_ptr<scalar_t>(), n);
    const auto columns = rotated_boxes(lists.second.const_data_ptr<scalar_t>(), m);
    BoundsList storage;
    const NmsBoxes<float> bounds = storage.reserve(m);
    for (int64_t j = 0; j < m; ++j) put(bounds, j, rotated_bounds(columns[j], 0));
    scalar_t* out = output.mutable_data_ptr<scalar_t>();
    math::with_constant<math::Base::kUnion, math::Base::kFirst>(overlap_base(mode), [&](auto base) {
      const auto row = DETOPS_IN_USE(rotated_iou_row<decltype(base)::value, scalar_t>);
      parallel_each(n, grain_for(kPairsPerThread, m),
                    [&](int64_t i) { row(rows[i], columns.data(), bounds, m, out + i * m); });
    });
  });
}

void rotated_iou_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                         Tensor& ratios) {
  const BoxLists lists(boxes1, boxes2, ratios.scalar_type());
  const math::Base base = overlap_base(mode);
  DETOPS_WIDE_SWITCH(ratios.scalar_type(), [&] {
    const auto *a = elements<scalar_t>(lists.first), *b = elements<scalar_t>(lists.second);
    scalar_t* out = ratios.mutable_data_ptr<scalar_t>();
    const auto kernel = DETOPS_IN_USE(rotated_iou_pairs<scalar_t>);
    parallel_for(ratios.numel(), kMatchedPairsPerThread, [&](int64_t begin, int64_t end) {
      kernel(a + 5 * begin, b + 5 * begin, end - begin, base, out + begin);
    });
  });
}

void rotated_iou_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                          std::string_view mode, Tensor& grad1, Tensor& grad2) {
  const BoxListGradients lists(grad, boxes1, boxes2);
  const math::Base base = overlap_base(mode);
  DETOPS_WIDE_SWITCH(lists.type(), [&] {
    const scalar_t* g = lists.grad.const_data_ptr<scalar_t>();
    const auto *a = elements<scalar_t>(lists.first), *b = elements<scalar_t>(lists.second);
    scalar_t* to_a = grad1.mutable_data_ptr<scalar_t>();
    scalar_t* to_b = grad2.mutable_data_ptr<scalar_t>();
    parallel_each(lists.grad.numel(), kGradientsPerThread, [&](int64_t i) {
      math::rotated::iou_gradient(math::rotated_box(a + 5 * i), math::rotated_box(b + 5 * i), base,
                                  double(g[i]), to_a + 5 * i, to_b + 5 * i);
    });
  });
}

}  // namespace detops::cpu
