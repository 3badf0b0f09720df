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
DETOPS_INLINE void prefetch(const void* line) { __builtin_prefetch(line, 0, 2); }

template <typename T>
DETOPS_INLINE void apply_epilogue(const Epilogue<T>& epilogue, int64_t row, int64_t output,
                                  Vector<T> sum) {
  const int64_t at = row * epilogue.stride + output, count = epilogue.outputs - output;
  if (epilogue.bias != nullptr) sum += load_first(epilogue.bias + output, count);
  if (epilogue.add != nullptr) sum += load_first(epilogue.add + at, count);
  if (epilogue.relu) sum = sum < 0 ? Vector<T>{} : sum;  // keeps NaN
  store_first(epilogue.out + at, sum, count);
}

// Multiplies kRows rows by a panel, for kVectors vectors of outputs from `output` on. Prefetches
// the rows of `add` and `out` and, line by line, the rows of the next tile.
template <int64_t kRows, int64_t kVectors, typename T>
DETOPS_INLINE void multiply_tile(const T* rows, int64_t stride, const ConvTaps& taps,
                                 const T* weights, int64_t output, const Epilogue<T>& epilogue) {
  constexpr int64_t kWidth = kLanes<T>, kLine = 64 / sizeof(T);
  DETOPS_UNROLL for (int64_t r = 0; r < kRows; ++r) {
    DETOPS_UNROLL for (int64_t v = 0; v < kVectors; ++v) {
      const int64_t at = r * epilogue.stride + output + v * kWidth;
      if (epilogue.add != nullptr) prefetch(epilogue.add + at);
      prefetch(epilogue.out + at);
    }
  }
  const bool prefetch_next = taps.count * taps.depth * kRows * int64_t(sizeof(T)) <= kRowBytes;
  Vector<T> sums[kRows][kVectors] = {};
  for (int64_t t = 0; t < taps.count; ++t) {
    const T* left = rows + taps.offsets[t];
    for (int64_t k = 0; k < taps.depth; k += kLine) {
      const int64_t depth = taps.depth - k < kLine ? taps.depth - k : kLine;
      if (prefetch_next) {
        DETOPS_UNROLL for (int64_t r = kRows; r < 2 * kRows; ++r) {
          prefetch(left + r * stride + k);
        }
      }
      multiply<kRows, kVectors>(left + k, weights, {stride, 1, kPanel}, depth, kWidth, sums);
      weights += depth * kPanel;
    }
  }
  DETOPS_UNROLL for (int64_t r = 0; r < kRows; ++r) {
    DETOPS_UNROLL for (int64_t v = 0; v < kVectors; ++v) {
      if (output + v * kWidth < epilogue.outputs) {
        apply_epilogue(epilogue, r, output + v * kWidth, sums[r][v]);
      }
    }
  }
}

// Multiplies any number of rows by several panels, in tiles of kRows rows, then in smaller ones.
template <int64_t kRows = kTileRows, typename T>
DETOPS_INLINE void multiply_rows(int64_t row_count, const T* rows, int64_t stride,
                                 const ConvTaps& taps, const T* panels, Epilogue<T> epilogue) {
  constexpr int64_t kWidth = kLanes<T>;
  const int64_t panel_size = taps.count * taps.depth * kPanel;
  for (; row_count >= kRows; row_count -= kRows) {
    for (int64_t o = 0; o < epilogue.outputs; o += 2 * kWidth) {
      const T* weights = panels + o / kPanel * panel_size + o % kPanel;
      if (epilogue.outputs - o > kWidth) {
        multiply_tile<kRows, 2>(rows, stride, taps, weights, o, epilogue);
      } else {
        multiply_tile<kRows, 1>(rows, stride, taps, weights, o, epilogue);
      }
    }
    rows += kRows * stride;
    epilogue.out += kRows * epilogue.stride;
    if (epilogue.add != nullptr) epilogue.add += kRows * epilogue.stride;
  }
  if constexpr (kRows > 1) {
    if (row_count > 0) multiply_rows<kRows / 2>(row_count, rows, stride, taps, panels, epilogue);
  }
}

// Copies the pixels that a block of outputs reads, with zeros for those off the feature map.
template <typename T>
void copy_window(const ConvSizes& s, const T* image, const ConvBlock& block, T* window) {
  const int64_t top = block.y * s.stride_y - s.padding_y;
  const int64_t left = block.x * s.stride_x - s.padding_x;
  // Columns [first, last) of the window lie on the feature map.
  const int64_t window_width = block.window_width;
  const int64_t first = left < 0 ? (-left < window_width ? -left : window_width) : 0;
  const int64_t end = s.width - left < window_width ? s.width - left : window_width;
  const int64_t last = end > first ? end : first;
  // Adjacent pixels are copied in one run if they are also adjacent in the window.
  const bool contiguous = block.pixel_stride == s.channels;
  const int64_t step = contiguous ? last - first : 1;
  const auto clear = [&](T* from, T* to) { __builtin_memset(from, 0, (to - from) * sizeof(T)); };
  for (int64_t y = top; y < top + block.window_height;
       ++y, window += window_width * block.pixel_stride) {
    T* next = window + window_width * block.pixel_stride;
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
  const int64_t max_outputs = panels > 1 ? panels * kPanel : kPanel;  // outputs at a time
  for (int64_t o = 0; o < s.outputs; o += max_outputs) {
    const int64_t outputs = s.outputs - o < max_outputs ? s.outputs - o : max_outputs;
    for (int64_t y = 0; y < block.height; ++y) {
      const int64_t pixel =
          (block.image * s.output_height + block.y + y) * s.output_width + block.x;
      const int64_t at = pixel * s.outputs + o;
      multiply_rows(block.width, pixels + y * s.stride_y * row_stride,
                    s.stride_x * block.pixel_stride, taps, data.weights + o * depth,
                    Epilogue<T>{data.bias == nullptr ? nullptr : data.bias + o,
                                data.add == nullptr ? nullptr : data.add + at, data.output + at,
                                s.outputs, outputs, data.relu});
    }
  }
}

#include "winograd.inl"
