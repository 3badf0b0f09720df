// SPDX-License-Identifier: MIT
#include "../../boxes/box_lists.h"
#include "../../math/overlap.h"

#define DETOPS_KERNELS "../boxes/box_iou_loss.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kPairsPerThread = 1 << 13;

// Overlaps of matched boxes, or their losses.
template <bool loss>
void forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind, double eps,
             Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    const scalar_t* a = lists.first.const_data_ptr<scalar_t>();
    const scalar_t* b = lists.second.const_data_ptr<scalar_t>();
    scalar_t* out = output.mutable_data_ptr<scalar_t>();
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      constexpr math::Overlap kKind = decltype(constant)::value;
      const auto kernel = DETOPS_IN_USE(box_pairs_forward<kKind, loss, scalar_t>);
      parallel_for(0, output.numel(), kPairsPerThread, [&](int64_t begin, int64_t end) {
        kernel(a + 4 * begin, b + 4 * begin, end - begin, scalar_t(eps), out + begin);
      });
    });
  });
}

template <bool loss>
void backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2, std::string_view kind,
              double eps, Tensor& grad1, Tensor& grad2) {
  const BoxListGradients lists(grad, boxes1, boxes2, grad1, grad2);
  DETOPS_WIDE_SWITCH(lists.type(), [&] {
    const scalar_t* g = lists.grad.const_data_ptr<scalar_t>();
    const scalar_t* a = lists.first.const_data_ptr<scalar_t>();
    const scalar_t* b = lists.second.const_data_ptr<scalar_t>();
    scalar_t* to_a = lists.to_first.mutable_data_ptr<scalar_t>();
    scalar_t* to_b = lists.to_second.mutable_data_ptr<scalar_t>();
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      constexpr math::Overlap kKind = decltype(constant)::value;
      const auto kernel = DETOPS_IN_USE(box_pairs_backward<kKind, loss, scalar_t>);
      parallel_for(0, lists.grad.numel(), kPairsPerThread, [&](int64_t begin, int64_t end) {
        kernel(g + begin, a + 4 * begin, b + 4 * begin, end - begin, scalar_t(eps),
               to_a + 4 * begin, to_b + 4 * begin);
      });
    });
  });
  lists.store(grad1, grad2);
}

}  // namespace

void box_iou_aligned_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind,
                             double eps, Tensor& output) {
  forward<false>(boxes1, boxes2, kind, eps, output);
}

void box_iou_aligned_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                              std::string_view kind, double eps, Tensor& grad1, Tensor& grad2) {
  backward<false>(grad, boxes1, boxes2, kind, eps, grad1, grad2);
}

void box_iou_loss_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind,
                          double eps, Tensor& loss) {
  forward<true>(boxes1, boxes2, kind, eps, loss);
}

void box_iou_loss_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                           std::string_view kind, double eps, Tensor& grad1, Tensor& grad2) {
  backward<true>(grad, boxes1, boxes2, kind, eps, grad1, grad2);
}

}  // namespace detops::cpu
