// SPDX-License-Identifier: MIT
#include "../common/host.h"

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
  const int64_t size = rows.element_size(), height = rows.size(1), row_bytes = rows.size(2) * size;
  const uint64_t bits = significant_bits(rows.scalar_type());
  constexpr int64_t kBytesPerThread = 1 << 16;
  const auto find = DETOPS_IN_USE(find_box);
  parallel_each(rows.size(0), grain_for(kBytesPerThread, height * row_bytes), [&](int64_t i) {
    find(data + i * height * row_bytes, height, row_bytes, size, bits, out + 4 * i);
  });
}

}  // namespace detops::cpu
