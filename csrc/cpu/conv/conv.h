// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "../../tensor.h"

// Convolution of feature maps stored as [images, height, width, channels].
namespace detops::cpu {

// Weights are packed in panels of kPanel outputs, in the order in which products read them:
// [planes, panels, depth, kPanel], zero-padded after the last output. A direct convolution has one
// plane of depth kernel_height * kernel_width * channels. Winograd's algorithm has one plane of
// depth `channels` for each of the 6x6 points of a tile of 4x4 results.
constexpr int64_t kPanel = 32;
constexpr int64_t kWinogradPlanes = 36;

inline int64_t panel_count(int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

struct ConvSizes {
  int64_t images, channels, height, width;
  int64_t outputs, output_height, output_width;
  int64_t kernel_height, kernel_width, stride_y, stride_x;
  int64_t padding_y, padding_x, dilation_y, dilation_x;
};

// Operands of a convolution. `bias` and `add` may be null.
template <typename T>
struct ConvData {
  const T *input, *weights, *bias, *add;
  T* output;
  bool relu;
};

// Inputs of one output pixel: for each t, `depth` elements at row + offsets[t].
struct ConvTaps {
  const int64_t* offsets;
  int64_t count, depth;
};

// Epilogue of a product: adds `bias` and `add` to the sums and applies relu, each of them optional.
// `add` and `out` have the same row stride.
template <typename T>
struct Epilogue {
  const T *bias, *add;
  T* out;
  int64_t stride, outputs;
  bool relu;
};

// A rectangle of output pixels of one image, and the size of the input window that they read.
struct ConvBlock {
  int64_t image, y, x, height, width;
  int64_t window_height, window_width, pixel_stride;
};

// Tiles of 4x4 results of every image, row by row. If one or two results remain for the last row or
// column, its tiles are two results high or wide and have 4 points on that side instead of 6.
struct WinogradTiles {
  int64_t rows, columns;
  bool short_last_row, narrow_last_column;

  explicit WinogradTiles(const ConvSizes& s)
      : rows((s.output_height + 3) / 4),
        columns((s.output_width + 3) / 4),
        short_last_row((s.output_height + 1) % 4 >= 2),
        narrow_last_column((s.output_width + 1) % 4 >= 2) {}

  int64_t per_image() const { return rows * columns; }
};

// Tile sizes in points, height x width. They are ordered so that the sizes that contain a plane's
// point are adjacent: all four sizes for group 0, the middle two for group 1, ...
enum TileSize { k6x4, k6x6, k4x6, k4x4, kTileSizes };
struct PlaneGroup {
  int64_t first, count;  // first plane, number of planes
  TileSize from, to;     // sizes that contain these planes
};
constexpr PlaneGroup kPlaneGroups[] = {
    {0, 16, k6x4, k4x4}, {16, 8, k6x6, k4x6}, {24, 8, k6x4, k6x6}, {32, 4, k6x6, k6x6}};

// Plane of the point (y, x). Planes are ordered by group.
constexpr int64_t plane_index(int64_t y, int64_t x) {
  if (y < 4) return x < 4 ? y * 4 + x : 16 + y * 2 + x - 4;
  return x < 4 ? 24 + (y - 4) * 4 + x : 32 + (y - 4) * 2 + x - 4;
}

// A tile: the position of its first result, and its row in the planes.
struct Tile {
  int64_t image, y, x;
  TileSize size;
  int64_t row;
};

// A range of consecutive tiles. Their rows in the planes are sorted by tile size.
class TileBlock {
 public:
  TileBlock(const WinogradTiles& tiles, int64_t first, int64_t count) {
    tiles_.reserve(count);
    for (int64_t i = first; i < first + count; ++i) {
      const int64_t y = i / tiles.columns % tiles.rows, x = i % tiles.columns;
      const bool is_short = tiles.short_last_row && y == tiles.rows - 1;
      const bool is_narrow = tiles.narrow_last_column && x == tiles.columns - 1;
      const TileSize size = is_short ? (is_narrow ? k4x4 : k4x6) : (is_narrow ? k6x4 : k6x6);
      tiles_.push_back({i / tiles.per_image(), y * 4, x * 4, size, starts_[size + 1]++});
    }
    for (int k = 0; k < kTileSizes; ++k) starts_[k + 1] += starts_[k];
    for (Tile& tile : tiles_) tile.row += starts_[tile.size];
  }

  int64_t count() const { return tiles_.size(); }
  const Tile& operator[](int64_t i) const { return tiles_[i]; }
  // Rows [begin, end) belong to the tiles that contain the planes of `group`.
  int64_t begin(const PlaneGroup& group) const { return starts_[group.from]; }
  int64_t end(const PlaneGroup& group) const { return starts_[group.to + 1]; }

 private:
  std::vector<Tile> tiles_;
  int64_t starts_[kTileSizes + 1] = {};
};

// Row stride of a plane, never a power of two: such rows would map to the same cache sets.
inline int64_t winograd_row_stride(int64_t columns) { return (columns + 31) / 32 * 32 + 16; }

}  // namespace detops::cpu
