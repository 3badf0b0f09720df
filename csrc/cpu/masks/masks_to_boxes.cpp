// SPDX-License-Identifier: MIT
#include "../../ops.h"

namespace detops::cpu {

struct MaskParams {
  int64_t height, width, element_size;  // of 1, 2, 4 or 8 bytes
  uint64_t bits;                        // that make an element other than zero, for eight bytes
};

// The first and last column and row that are set.
struct MaskExtent {
  int64_t x1, y1, x2, y2;
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../masks/masks_to_boxes.inl"
#include "../simd/variants.h"

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
  const auto extent = DETOPS_IN_USE(mask_extent);
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
