// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../simd/product.inl"

// Rows of a tile: their sums, two vectors each, fill the registers.
constexpr int64_t kTileRows = DETOPS_VECTOR_BYTES == 64 ? 14 : 6;

template <typename T>
DETOPS_INLINE void finish_vector(const Finish<T>& finish, int64_t row, int64_t output,
                                 Vector<T> sum) {
  const int64_t at = row * finish.stride + output, count = finish.outputs - output;
  if (finish.bias != nullptr) sum += load_first(finish.bias + output, count);
  if (finish.add != nullptr) sum += load_first(finish.add + at, count);
  if (finish.relu) sum = sum < 0 ? Vector<T>{} : sum;  // NaN stays
  store_first(finish.out + at, sum, count);
}

// Of kRows rows the outputs from `output` on that kVectors vectors hold, by a panel's weights.
template <int64_t kRows, int64_t kVectors, typename T>
DETOPS_INLINE void multiply_tile(const T* rows, int64_t stride, const ConvTaps& taps,
                                 const T* panel, int64_t output, const Finish<T>& finish) {
  constexpr int64_t kWidth = kLanes<T>;
  Vector<T> sums[kRows][kVectors] = {};
  const T* weights = panel + output;
  for (int64_t t = 0; t < taps.count; ++t, weights += taps.depth * kPanel) {
    multiply<kRows, kVectors>(rows + taps.offsets[t], weights, {stride, 1, kPanel}, taps.depth,
                              kWidth, sums);
  }
  DETOPS_UNROLL for (int64_t r = 0; r < kRows; ++r) {
    DETOPS_UNROLL for (int64_t v = 0; v < kVectors; ++v) {
      if (output + v * kWidth < finish.outputs) {
        finish_vector(finish, r, output + v * kWidth, sums[r][v]);
      }
    }
  }
}

// Any number of rows times a panel.
template <int64_t kRows = kTileRows, typename T>
DETOPS_INLINE void multiply_rows(int64_t number, const T* rows, int64_t stride,
                                 const ConvTaps& taps, const T* panel, Finish<T> finish) {
  constexpr int64_t kWidth = kLanes<T>;
  for (; number >= kRows; number -= kRows) {
    for (int64_t o = 0; o < finish.outputs; o += 2 * kWidth) {
      if (finish.outputs - o > kWidth) {
        multiply_tile<kRows, 2>(rows, stride, taps, panel, o, finish);
      } else {
        multiply_tile<kRows, 1>(rows, stride, taps, panel, o, finish);
      }
    }
    rows += kRows * stride;
    finish.out += kRows * finish.stride;
    if (finish.add != nullptr) finish.add += kRows * finish.stride;
  }
  if constexpr (kRows > 1) {
    if (number > 0) multiply_rows<kRows / 2>(number, rows, stride, taps, panel, finish);
  }
}

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

// to[w * height + h] = from[h * width + w], square by square.
template <typename T, typename A = accumulate_t<T>>
void transpose_matrix(const T* from, int64_t height, int64_t width, T* to) {
  constexpr int64_t kSide = kLanes<A>;
  for (int64_t w = 0; w < width; w += kSide) {
    const int64_t columns = width - w < kSide ? width - w : kSide;
    for (int64_t h = 0; h < height; h += kSide) {
      const int64_t rows = height - h < kSide ? height - h : kSide;
      const T* square = from + h * width + w;
      T* turned = to + w * height + h;
      // The last of 7 x 7 pixels costs less by itself than a square would.
      if (rows == 1) {
        for (int64_t c = 0; c < columns; ++c) turned[c * height] = square[c];
        continue;
      }
      Vector<A> v[kSide];
      load_turned(square, width, rows, columns, v);
      DETOPS_UNROLL for (int64_t c = 0; c < kSide; ++c) {
        if (c < columns) store_first(turned + c * height, v[c], rows);
      }
    }
  }
}

#include "winograd.inl"
