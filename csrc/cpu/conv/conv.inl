// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../simd/product.inl"

// Rows of a register tile. Their sums, two vectors per row, fill the registers.
constexpr int64_t kTileRows = DETOPS_VECTOR_BYTES == 64 ? 14 : 6;

// Bytes of weights per pass over the rows: a row stays in L1, the weights in L2.
constexpr int64_t kWeightBytes = 256 << 10;
// Largest tile of rows, in bytes, that leaves room in L2 for the rows of the next tile.
constexpr int64_t kRowBytes = 128 << 10;

// Feature maps are read along more cache lines than the hardware prefetcher can follow. Prefetches
// go to L2: in L1 they would evict data in use.
DETOPS_INLINE void fetch(const void* line) { __builtin_prefetch(line, 0, 2); }

template <typename T>
DETOPS_INLINE void finish_vector(const Finish<T>& finish, int64_t row, int64_t output,
                                 Vector<T> sum) {
  const int64_t at = row * finish.stride + output, count = finish.outputs - output;
  if (finish.bias != nullptr) sum += load_first(finish.bias + output, count);
  if (finish.add != nullptr) sum += load_first(finish.add + at, count);
  if (finish.relu) sum = sum < 0 ? Vector<T>{} : sum;  // keeps NaN
  store_first(finish.out + at, sum, count);
}

// Multiplies kRows rows by a panel, for kVectors vectors of outputs from `output` on. Prefetches
// the rows of `add` and `out` and, line by line, the rows of the next tile.
template <int64_t kRows, int64_t kVectors, typename T>
DETOPS_INLINE void multiply_tile(const T* rows, int64_t stride, const ConvTaps& taps,
                                 const T* weights, int64_t output, const Finish<T>& finish) {
  constexpr int64_t kWidth = kLanes<T>, kLine = 64 / sizeof(T);
  DETOPS_UNROLL for (int64_t r = 0; r < kRows; ++r) {
    DETOPS_UNROLL for (int64_t v = 0; v < kVectors; ++v) {
      const int64_t at = r * finish.stride + output + v * kWidth;
      if (finish.add != nullptr) fetch(finish.add + at);
      fetch(finish.out + at);
    }
  }
  const bool follow = taps.count * taps.depth * kRows * int64_t(sizeof(T)) <= kRowBytes;
  Vector<T> sums[kRows][kVectors] = {};
  for (int64_t t = 0; t < taps.count; ++t) {
    const T* left = rows + taps.offsets[t];
    for (int64_t k = 0; k < taps.depth; k += kLine) {
      const int64_t depth = taps.depth - k < kLine ? taps.depth - k : kLine;
      if (follow) {
        DETOPS_UNROLL for (int64_t r = kRows; r < 2 * kRows; ++r) { fetch(left + r * stride + k); }
      }
      multiply<kRows, kVectors>(left + k, weights, {stride, 1, kPanel}, depth, kWidth, sums);
      weights += depth * kPanel;
    }
  }
  DETOPS_UNROLL for (int64_t r = 0; r < kRows; ++r) {
    DETOPS_UNROLL for (int64_t v = 0; v < kVectors; ++v) {
      if (output + v * kWidth < finish.outputs) {
        finish_vector(finish, r, output + v * kWidth, sums[r][v]);
      }
    }
  }
}

// Multiplies any number of rows by several panels, in tiles of kRows rows, then in smaller ones.
template <int64_t kRows = kTileRows, typename T>
DETOPS_INLINE void multiply_rows(int64_t number, const T* rows, int64_t stride,
                                 const ConvTaps& taps, const T* panels, Finish<T> finish) {
  constexpr int64_t kWidth = kLanes<T>;
  const int64_t panel = taps.count * taps.depth * kPanel;
  for (; number >= kRows; number -= kRows) {
    for (int64_t o = 0; o < finish.outputs; o += 2 * kWidth) {
      const T* weights = panels + o / kPanel * panel + o % kPanel;
      if (finish.outputs - o > kWidth) {
        multiply_tile<kRows, 2>(rows, stride, taps, weights, o, finish);
      } else {
        multiply_tile<kRows, 1>(rows, stride, taps, weights, o, finish);
      }
    }
    rows += kRows * stride;
    finish.out += kRows * finish.stride;
    if (finish.add != nullptr) finish.add += kRows * finish.stride;
  }
  if constexpr (kRows > 1) {
    if (number > 0) multiply_rows<kRows / 2>(number, rows, stride, taps, panels, finish);
  }
}

// Copies the pixels that a block of outputs reads, with zeros for those off the feature map.
template <typename T>
void copy_window(const ConvSizes& s, const T* image, const ConvBlock& block, T* window) {
  const int64_t top = block.y * s.stride_y - s.padding_y;
  const int64_t left = block.x * s.stride_x - s.padding_x;
  // Columns [first, last) of the window lie on the feature map.
  const int64_t most = block.window_width;
  const int64_t first = left < 0 ? (-left < most ? -left : most) : 0;
  const int64_t end = s.width - left < most ? s.width - left : most;
  const int64_t last = end > first ? end : first;
  // Adjacent pixels are copied in one run if they are also adjacent in the window.
  const bool runs = block.pixel_stride == s.channels;
  const int64_t step = runs ? last - first : 1;
  const auto clear = [&](T* from, T* to) { __builtin_memset(from, 0, (to - from) * sizeof(T)); };
  for (int64_t y = top; y < top + block.window_height; ++y, window += most * block.pixel_stride) {
    T* next = window + most * block.pixel_stride;
    if (y < 0 || y >= s.height || first == last) {
      clear(window, next);
      continue;
    }
    clear(window, window + first * block.pixel_stride);
    const T* row = image + (y * s.width + left) * s.channels;
    for (int64_t x = first; x < last; x += step) {
      __builtin_memcpy(window + x * block.pixel_stride, row + x * s.channels,
                       step * s.channels * sizeof(T));
    }
    clear(window + last * block.pixel_stride, next);
  }
}

// Computes a block of outputs of one image. Without a `window` it reads the input in place.
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
  const int64_t panels = kWeightBytes / (depth * kPanel * int64_t(sizeof(T)) + 1);
  const int64_t most = panels > 1 ? panels * kPanel : kPanel;  // outputs at a time
  for (int64_t o = 0; o < s.outputs; o += most) {
    const int64_t outputs = s.outputs - o < most ? s.outputs - o : most;
    for (int64_t y = 0; y < block.height; ++y) {
      const int64_t pixel =
          (block.image * s.output_height + block.y + y) * s.output_width + block.x;
      const int64_t at = pixel * s.outputs + o;
      multiply_rows(block.width, pixels + y * s.stride_y * row_stride,
                    s.stride_x * block.pixel_stride, taps, data.weights + o * depth,
                    Finish<T>{data.bias == nullptr ? nullptr : data.bias + o,
                              data.add == nullptr ? nullptr : data.add + at, data.output + at,
                              s.outputs, outputs, data.relu});
    }
  }
}

#include "winograd.inl"
