// SPDX-License-Identifier: MIT
#include "../../ops.h"

namespace detops::cpu {

struct MaskParams {
  int64_t height, width, element_size;  // of 1, 2, 4 or 8 bytes
  uint64_t bits;                        // that make an element other than zero, for eight bytes
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../masks/masks_to_boxes.inl"
#include "../simd/variants.h"

namespace detops::cpu {

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
  constexpr int64_t kBytesPerThread = 1 << 16;
  const int64_t grain = std::max<int64_t>(1, kBytesPerThread / bytes);
  const auto find = DETOPS_IN_USE(find_box);
  parallel_each(rows.size(0), grain,
                [&](int64_t i) { find(params, data + i * bytes, out + 4 * i); });
}

}  // namespace detops::cpu
