// SPDX-License-Identifier: MIT
#include "../../host/box_lists.h"
#include "bounds.h"

namespace detops::cpu {

void box_iou_quadri(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                    Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  const auto overlap = [base = overlap_base(mode)](const math::Quad& p, const math::Quad& q) {
    return math::iou(p, q, base);
  };
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    const scalar_t* a = lists.first.const_data_ptr<scalar_t>();
    const scalar_t* b = lists.second.const_data_ptr<scalar_t>();
    const auto shape_at = [&](int64_t i) { return bounded_quad(a + 8 * i); };
    overlap_with_quads(b, output, shape_at, overlap);
  });
}

void box_iou_quadri_pairs(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                          Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  const auto overlap = [base = overlap_base(mode)](const math::Quad& p, const math::Quad& q) {
    return math::iou(p, q, base);
  };
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    const scalar_t* a = lists.first.const_data_ptr<scalar_t>();
    const scalar_t* b = lists.second.const_data_ptr<scalar_t>();
    scalar_t* out = output.mutable_data_ptr<scalar_t>();
    parallel_each(output.numel(), kPairsPerThread, [&](int64_t i) {
      out[i] = bounded_overlap<scalar_t>(bounded_quad(a + 8 * i), bounded_quad(b + 8 * i), overlap);
    });
  });
}

}  // namespace detops::cpu
