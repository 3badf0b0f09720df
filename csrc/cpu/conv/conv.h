// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "../../tensor.h"

// A convolution of maps that are [images, height, width, channels] in memory.
namespace detops::cpu {

// Weights are kept in panels of so many outputs, the order in which products read them: [planes,
// panels, depth, kPanel], with zeros behind the last output. A direct convolution has one plane,
// whose depth is kernel_height * kernel_width * channels. One by Winograd's algorithm has a plane
// for each of the 6x6 points of a tile of 4x4 results, and the channels as their depth; smaller
// tiles have the first of these points.
constexpr int64_t kPanel = 32;
constexpr int64_t kWinogradPoints = 6;
constexpr int64_t kWinogradPlanes = kWinogradPoints * kWinogradPoints;

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

// Tiles of one size in every image, row by row from result (y, x) on. One of 4 results a side has 6
// points a side, one of 2 has 4.
struct WinogradTiles {
  int64_t y, x, down, across;
  int64_t points_y, points_x;

  int64_t planes() const { return points_y * points_x; }
};

// All tiles of a convolution. Where one or two results are left at an edge, tiles of two take a
// third less there; of few images they are too few rows for a product to be worth its weights.
inline std::vector<WinogradTiles> winograd_tiles_of(const ConvSizes& s) {
  constexpr int64_t kImages = 16;
  struct Part {
    int64_t begin, count, points;
  };
  const auto parts_of = [&](int64_t results) {
    const bool ends_small = s.images >= kImages && (results % 4 == 1 || results % 4 == 2);
    const int64_t whole = ends_small ? results / 4 : (results + 3) / 4;
    std::vector<Part> parts;
    if (whole > 0) parts.push_back({0, whole, 6});
    if (ends_small) parts.push_back({whole * 4, 1, 4});
    return parts;
  };
  std::vector<WinogradTiles> tiles;
  for (const Part& y : parts_of(s.output_height)) {
    for (const Part& x : parts_of(s.output_width)) {
      tiles.push_back({y.begin, x.begin, y.count, x.count, y.points, x.points});
    }
  }
  return tiles;
}

// Between the rows of a plane: rows a power of two apart would share their places in the cache.
inline int64_t winograd_stride(int64_t columns) { return (columns + 31) / 32 * 32 + 16; }

}  // namespace detops::cpu
