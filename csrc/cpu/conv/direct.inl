// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

// The pixels that a block of outputs reads, and zeros where there are none, pixel by pixel.
template <typename T>
void copy_window(const ConvSizes& s, const T* image, const ConvBlock& block, T* window) {
  const int64_t top = block.y * s.stride_y - s.padding_y;
  const int64_t left = block.x * s.stride_x - s.padding_x;
  for (int64_t y = top; y < top + block.window_height; ++y) {
    for (int64_t x = left; x < left + block.window_width; ++x, window += block.pixel_stride) {
      if (y >= 0 && y < s.height && x >= 0 && x < s.width) {
        __builtin_memcpy(window, image + (y * s.width + x) * s.channels, s.channels * sizeof(T));
      } else {
        __builtin_memset(window, 0, s.channels * sizeof(T));
      }
    }
  }
}

// A block of outputs of one image.
template <typename T>
void direct_block(const ConvSizes& s, const ConvData<T>& data, const ConvBlock& block,
                  const ConvTaps& taps, T* window) {
  const T* pixels = data.input + block.image * s.height * s.width * s.channels;
  int64_t row_stride = s.width * s.channels;
  if (window == nullptr) {
    pixels += (block.y * s.stride_y * s.width + block.x * s.stride_x) * s.channels;
  } else {
    copy_window(s, pixels, block, window);
    pixels = window;
    row_stride = block.window_width * block.pixel_stride;
  }
  const int64_t depth = taps.count * taps.depth;
  for (int64_t p = 0; p < panels_of(s.outputs); ++p) {
    for (int64_t y = 0; y < block.height; ++y) {
      const int64_t pixel =
          (block.image * s.output_height + block.y + y) * s.output_width + block.x;
      const int64_t at = pixel * s.outputs + p * kPanel;
      const int64_t left = s.outputs - p * kPanel;
      multiply_rows(block.width, pixels + y * s.stride_y * row_stride,
                    s.stride_x * block.pixel_stride, taps, data.weights + p * depth * kPanel,
                    Finish<T>{data.bias == nullptr ? nullptr : data.bias + p * kPanel,
                              data.add == nullptr ? nullptr : data.add + at, data.output + at,
                              s.outputs, left < kPanel ? left : kPanel, data.relu});
    }
  }
}
