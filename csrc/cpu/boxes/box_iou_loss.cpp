// SPDX-License-Identifier: MIT
#include "../../math/overlap.h"
#include "../../ops.h"

#define DETOPS_KERNELS "../boxes/box_iou_loss.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kPairsPerThread = 1 << 13;

}  // namespace

void box_iou_loss_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind,
                          double eps, Tensor& loss) {
  const Tensor first = boxes1.to(loss.scalar_type()).contiguous();
  const Tensor second = boxes2.to(loss.scalar_type()).contiguous();
  DETOPS_WIDE_SWITCH(loss.scalar_type(), [&] {
    const scalar_t* a = first.const_data_ptr<scalar_t>();
    const scalar_t* b = second.const_data_ptr<scalar_t>();
    scalar_t* out = loss.mutable_data_ptr<scalar_t>();
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      const auto kernel = DETOPS_IN_USE(box_loss_forward<decltype(constant)::value, scalar_t>);
      parallel_for(0, loss.numel(), kPairsPerThread, [&](int64_t begin, int64_t end) {
        kernel(a + 4 * begin, b + 4 * begin, end - begin, scalar_t(eps), out + begin);
      });
    });
  });
}

void box_iou_loss_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                           std::string_view kind, double eps, Tensor& grad1, Tensor& grad2) {
  const ScalarType type = compute_type(promoted_type(boxes1.scalar_type(), boxes2.scalar_type()));
  const Tensor first = boxes1.to(type).contiguous(), second = boxes2.to(type).contiguous();
  const Tensor outer = grad.to(type).contiguous();
  const Tensor to_first = grad1.to(type), to_second = grad2.to(type);  // themselves, mostly
  DETOPS_WIDE_SWITCH(type, [&] {
    const scalar_t* g = outer.const_data_ptr<scalar_t>();
    const scalar_t* a = first.const_data_ptr<scalar_t>();
    const scalar_t* b = second.const_data_ptr<scalar_t>();
    scalar_t* to_a = to_first.mutable_data_ptr<scalar_t>();
    scalar_t* to_b = to_second.mutable_data_ptr<scalar_t>();
    math::with_kind(overlap_kind(kind), [&](auto constant) {
      const auto kernel = DETOPS_IN_USE(box_loss_backward<decltype(constant)::value, scalar_t>);
      parallel_for(0, outer.numel(), kPairsPerThread, [&](int64_t begin, int64_t end) {
        kernel(g + begin, a + 4 * begin, b + 4 * begin, end - begin, scalar_t(eps),
               to_a + 4 * begin, to_b + 4 * begin);
      });
    });
  });
  grad1 = as_type(to_first, grad1.scalar_type());
  grad2 = as_type(to_second, grad2.scalar_type());
}

}  // namespace detops::cpu
