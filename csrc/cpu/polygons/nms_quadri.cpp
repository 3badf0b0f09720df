// SPDX-License-Identifier: MIT
#include "../../ops.h"
#include "../common/rotated_boxes.h"
#include "../common/score_order.h"
#include "bounds.h"

#define DETOPS_KERNELS "../polygons/nms_quadri.inl"
#include "../simd/variants.h"

namespace detops::cpu {

Tensor nms_quadri(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  const int64_t n = boxes.size(0);
  const auto indices = boxes.options().dtype(kLong);
  if (n == 0) return empty({0}, indices);
  const Tensor corners = wide(boxes);
  const Selection selection(wide(scores), nullptr);
  Buffer<uint8_t> keep(n);
  DETOPS_WIDE_SWITCH(corners.scalar_type(), [&] {
    const scalar_t* coords = corners.const_data_ptr<scalar_t>();
    Buffer<math::Quad> quads(n);
    for (int64_t i = 0; i < n; ++i)
      quads[i] = math::quad(coords + 8 * int64_t(selection.order()[i]));
    BoundsList kept;
    Buffer<uint32_t> index(n);
    const auto nms = DETOPS_IN_USE(quadri_nms<scalar_t>);
    nms(quads.data(), n, iou_threshold, kept.reserve(n), index.data(), keep.data());
  });
  return selection.selected(keep.data(), indices, n);
}

}  // namespace detops::cpu
