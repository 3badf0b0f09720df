// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/host_device.h"

// Assigns work to blocks and threads: plain functions in 64 bits that can be tested without a GPU
// (tests/ops/cuda/test_cuda_geometry.py).
namespace detops::cuda {

DETOPS_HD int64_t ceil_div(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Strides in elements of [N, C, H, W], contiguous or channels_last.
struct Strides {
  int64_t n, c, h, w;

  DETOPS_HD int64_t at(int64_t i, int64_t channel, int64_t y, int64_t x) const {
    return i * n + channel * c + y * h + x * w;
  }
};

DETOPS_HD Strides strides_of(bool channels_last, int64_t c, int64_t h, int64_t w) {
  return channels_last ? Strides{c * h * w, 1, w * c, c} : Strides{c * h * w, h * w, w, 1};
}

// Coordinates of an element of [N, C, H, W]. position_of() computes them from its memory index.
struct Position {
  int64_t n, c, h, w;
};

DETOPS_HD Position position_of(int64_t i, bool channels_last, int64_t channels, int64_t height,
                               int64_t width) {
  Position at;
  if (channels_last) at.c = i % channels, i /= channels;
  at.w = i % width, i /= width;
  at.h = i % height, i /= height;
  if (!channels_last) at.c = i % channels, i /= channels;
  at.n = i;
  return at;
}

// Feature maps [N, C, H, W], contiguous or channels_last.
struct FeatureMaps {
  int64_t n, c, h, w;
  bool channels_last;
  Strides strides = strides_of(channels_last, c, h, w);

  DETOPS_HD int64_t pixels() const { return h * w; }
  DETOPS_HD int64_t elements() const { return n * c * h * w; }
  DETOPS_HD Position position(int64_t i) const { return position_of(i, channels_last, c, h, w); }
};

// A part of a row. part_of() splits rows of `length` items into parts of at most `size` items, and
// returns part `i`.
struct Part {
  int64_t row, first;
  int count;  // items
};

DETOPS_HD Part part_of(int64_t i, int64_t length, int64_t size) {
  const int64_t parts = ceil_div(length, size), first = i % parts * size;
  return {i / parts, first, static_cast<int>(math::min(size, length - first))};
}

// Square tiles that cover images, numbered image by image and row by row.
struct TileGrid {
  int64_t images, rows, columns;

  DETOPS_HD int64_t count() const { return images * rows * columns; }
};

DETOPS_HD TileGrid tile_grid(int64_t images, int64_t height, int64_t width, int64_t side) {
  return {images, ceil_div(height, side), ceil_div(width, side)};
}

// Image and upper left pixel of a tile.
struct TileOrigin {
  int64_t image, y, x;
};

DETOPS_HD TileOrigin tile_origin(const TileGrid& grid, int64_t tile, int64_t side) {
  return {tile / grid.columns / grid.rows, tile / grid.columns % grid.rows * side,
          tile % grid.columns * side};
}

}  // namespace detops::cuda
