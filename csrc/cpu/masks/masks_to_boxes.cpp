// SPDX-License-Identifier: MIT
#include "../../ops.h"
#include "masks_to_boxes_kernels.h"

namespace detops::cpu {
namespace {

constexpr int64_t kBytesPerThread = 1 << 16;

}  // namespace

void masks_to_boxes(const Tensor& masks, Tensor& boxes) {
  if (masks.numel() == 0) {
    boxes.zero_();
    return;
  }
  const Tensor rows = masks.contiguous();
  const auto* data = static_cast<const uint8_t*>(rows.const_data_ptr());
  float* out = boxes.mutable_data_ptr<float>();
  const MaskParams params{rows.size(1), rows.size(2), rows.element_size(),
                          significant_bits(rows.scalar_type())};
  const int64_t bytes = params.height * params.width * params.element_size;
  const auto extent = mask_kernels().extent;
  const int64_t grain = std::max<int64_t>(1, kBytesPerThread / bytes);
  parallel_for(0, rows.size(0), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      MaskExtent e{0, 0, 0, 0};
      extent(params, data + i * bytes, e);
      const float box[4] = {float(e.x1), float(e.y1), float(e.x2), float(e.y2)};
      std::copy(box, box + 4, out + 4 * i);
    }
  });
}

}  // namespace detops::cpu
