// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Plain loops that the compilers turn into
// vectors. Never fused: the rounding decides which pixels are set.

template <typename T>
void paste_binary_row(const T* __restrict low, const T* __restrict high, T weight_low,
                      T weight_high, T threshold, int64_t count, uint8_t* __restrict pixels) {
  for (int64_t i = 0; i < count; ++i) {
    pixels[i] = low[i] * weight_low + high[i] * weight_high >= threshold;
  }
}

template <typename T>
void paste_soft_row(const T* __restrict low, const T* __restrict high, T weight_low, T weight_high,
                    T, int64_t count, uint8_t* __restrict pixels) {
  for (int64_t i = 0; i < count; ++i) {
    pixels[i] = math::soft_mask_value(low[i] * weight_low + high[i] * weight_high);
  }
}
