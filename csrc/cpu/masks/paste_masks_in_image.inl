// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Plain loops that compilers vectorise. Never
// fused: the rounding decides which pixels are set.

template <bool kSoft, typename T>
void paste_row(const T* __restrict low, const T* __restrict high, T weight_low, T weight_high,
               T threshold, int64_t count, uint8_t* __restrict pixels) {
  for (int64_t i = 0; i < count; ++i) {
    const T value = low[i] * weight_low + high[i] * weight_high;
    if constexpr (kSoft) {
      pixels[i] = math::soft_mask_value(value);
    } else {
      pixels[i] = value >= threshold;
    }
  }
}
