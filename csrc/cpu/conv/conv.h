// SPDX-License-Identifier: MIT
#pragma once

#include "../../tensor.h"

// A convolution of maps that are [images, height, width, channels] in memory.
namespace detops::cpu {

// Weights are kept in panels of so many outputs, the order in which products read them: [planes,
// panels, depth, kPanel], with zeros behind the last output. A direct convolution has one plane,
// whose depth is kernel_height * kernel_width * channels. One by Winograd's algorithm has a plane
// for each of the 6x6 points of a tile of 4x4 results, and the channels as their depth.
constexpr int64_t kPanel = 32;
constexpr int64_t kWinogradPlanes = 36;

inline int64_t panels_of(int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

struct ConvSizes {
  int64_t images, channels, height, width;
  int64_t outputs, output_height, output_width;
  int64_t kernel_height, kernel_width, stride_y, stride_x;
  int64_t padding_y, padding_x, dilation_y, dilation_x;
};

// What a convolution reads and writes; `bias` and `add` may be null.
template <typename T>
struct ConvData {
  const T *input, *weights, *bias, *add;
  T* output;
  bool relu;
};

// Where the factors of a row are: at row + offsets[t], `depth` of them for each t.
struct ConvTaps {
  const int64_t* offsets;
  int64_t count, depth;
};

// How sums become results: + bias, + add, and the rectifier. Rows of `add` are as far apart as
// those of `out`.
template <typename T>
struct Finish {
  const T *bias, *add;
  T* out;
  int64_t stride, outputs;
  bool relu;
};

// Results of one image, and the window of the map that they read.
struct ConvBlock {
  int64_t image, y, x, height, width;
  int64_t window_height, window_width, pixel_stride;
};

// Between the rows of a plane: rows a power of two apart would share their places in the cache.
inline int64_t winograd_stride(int64_t columns) { return (columns + 31) / 32 * 32 + 16; }

}  // namespace detops::cpu
