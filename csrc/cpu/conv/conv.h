// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "../../tensor.h"

// A convolution of maps that are [images, height, width, channels] in memory.
namespace detops::cpu {

// Weights are kept in panels of so many outputs, the order in which products read them: [planes,
// panels, depth, kPanel], with zeros after the last output. A direct convolution has one plane,
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

// How sums become results: + bias, + add, whose rows are as far apart as out's, and the rectifier.
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

// Tiles of 4x4 results of every image, row by row. Where one or two results are left for the last
// row or column, tiles are of two there, which have 4 points a side instead of 6.
struct WinogradTiles {
  int64_t down, across;
  bool low, narrow;  // of two results in the last row, in the last column

  explicit WinogradTiles(const ConvSizes& s)
      : down((s.output_height + 3) / 4),
        across((s.output_width + 3) / 4),
        low((s.output_height + 1) % 4 >= 2),
        narrow((s.output_width + 1) % 4 >= 2) {}

  int64_t of_image() const { return down * across; }
};

// Sizes of tiles, points down x across, in an order in which the sizes that have a plane's point
// are neighbours: those of group 0 all four, of group 1 the middle ones, ...
enum TileSize { k6x4, k6x6, k4x6, k4x4, kTileSizes };
struct PlaneGroup {
  int64_t first, count;  // planes
  TileSize from, to;     // sizes that have them
};
constexpr PlaneGroup kPlaneGroups[] = {
    {0, 16, k6x4, k4x4}, {16, 8, k6x6, k4x6}, {24, 8, k6x4, k6x6}, {32, 4, k6x6, k6x6}};

// The plane of a point, by group.
constexpr int64_t plane_of(int64_t y, int64_t x) {
  if (y < 4) return x < 4 ? y * 4 + x : 16 + y * 2 + x - 4;
  return x < 4 ? 24 + (y - 4) * 4 + x : 32 + (y - 4) * 2 + x - 4;
}

// A tile, by its first result, and its row in the planes.
struct Tile {
  int64_t image, y, x;
  TileSize size;
  int64_t row;
};

// Some tiles, one after the other, whose rows are in the order of their sizes.
class TileBlock {
 public:
  TileBlock(const WinogradTiles& tiles, int64_t first, int64_t count) {
    tiles_.reserve(count);
    for (int64_t i = first; i < first + count; ++i) {
      const int64_t y = i / tiles.across % tiles.down, x = i % tiles.across;
      const bool low = tiles.low && y == tiles.down - 1;
      const bool narrow = tiles.narrow && x == tiles.across - 1;
      const TileSize size = low ? (narrow ? k4x4 : k4x6) : (narrow ? k6x4 : k6x6);
      tiles_.push_back({i / tiles.of_image(), y * 4, x * 4, size, starts_[size + 1]++});
    }
    for (int k = 0; k < kTileSizes; ++k) starts_[k + 1] += starts_[k];
    for (Tile& tile : tiles_) tile.row += starts_[tile.size];
  }

  int64_t count() const { return tiles_.size(); }
  const Tile& operator[](int64_t i) const { return tiles_[i]; }
  // The rows of the tiles that have a group's planes: [begin, end).
  int64_t begin(const PlaneGroup& group) const { return starts_[group.from]; }
  int64_t end(const PlaneGroup& group) const { return starts_[group.to + 1]; }

 private:
  std::vector<Tile> tiles_;
  int64_t starts_[kTileSizes + 1] = {};
};

// Between the rows of a plane: rows a power of two apart would share their places in the cache.
inline int64_t winograd_stride(int64_t columns) { return (columns + 31) / 32 * 32 + 16; }

}  // namespace detops::cpu
