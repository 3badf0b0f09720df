// Tests that blocks and threads of CUDA kernels own each piece of the work exactly once. Exits with
// the number of failures; see tests/ops/cuda/test_cuda_geometry.py.
#include "../../csrc/cuda/common/indexing.h"

#include <vector>

#include "expect.h"

using namespace detops::cuda;

namespace {

int64_t offset(const Strides& s, const Position& at) {
  return at.n * s.n + at.c * s.c + at.h * s.h + at.w * s.w;
}

void positions(bool last, int64_t n, int64_t c, int64_t h, int64_t w) {
  const Strides s = strides_of(last, c, h, w);
  for (int64_t i = 0; i < n * c * h * w; ++i) {
    const Position at = position_of(i, last, c, h, w);
    EXPECT(at.n < n && at.c < c && at.h < h && at.w < w && offset(s, at) == i);
  }
}

// Checks the first and the last element and those around powers of two.
void far_positions(bool last, int64_t n, int64_t c, int64_t h, int64_t w) {
  const Strides s = strides_of(last, c, h, w);
  const int64_t all = n * c * h * w;
  for (int64_t i :
       {int64_t(0), (int64_t(1) << 31) - 1, int64_t(1) << 31, (int64_t(1) << 32) + 5, all - 1}) {
    if (i >= all) continue;
    const Position at = position_of(i, last, c, h, w);
    EXPECT(at.n < n && at.c < c && at.h < h && at.w < w && offset(s, at) == i);
  }
  const Position end{n - 1, c - 1, h - 1, w - 1};
  EXPECT(offset(s, end) == all - 1);
}

// Checks that every item of every row is in exactly one part, and that parts stay within their row.
void parts(int64_t rows, int64_t length, int64_t size) {
  std::vector<int> owners(rows * length);
  for (int64_t i = 0; i < rows * ceil_div(length, size); ++i) {
    const Part part = part_of(i, length, size);
    EXPECT(part.row < rows && part.count > 0 && part.first + part.count <= length);
    for (int k = 0; k < part.count; ++k) ++owners[part.row * length + part.first + k];
  }
  for (int owner : owners) EXPECT(owner == 1);
}

// Checks that every pixel is in exactly one tile.
void tiles(int64_t images, int64_t height, int64_t width, int64_t side) {
  const TileGrid grid = tile_grid(images, height, width, side);
  std::vector<int> owners(images * height * width);
  for (int64_t tile = 0; tile < grid.count(); ++tile) {
    const TileOrigin at = tile_origin(grid, tile, side);
    EXPECT(at.image < images && at.y < height && at.x < width);
    for (int64_t y = at.y; y < at.y + side && y < height; ++y) {
      for (int64_t x = at.x; x < at.x + side && x < width; ++x) {
        ++owners[(at.image * height + y) * width + x];
      }
    }
  }
  for (int owner : owners) EXPECT(owner == 1);
}

}  // namespace

int main() {
  for (bool last : {false, true}) {
    positions(last, 2, 3, 4, 5);
    positions(last, 1, 1, 1, 7);
    positions(last, 3, 33, 1, 2);
    far_positions(last, 130, 256, 200, 336);
    far_positions(last, 43000, 256, 14, 14);
    far_positions(last, 1, 3, 60000, 60000);
  }
  for (int64_t length : {1, 31, 32, 33, 64, 100}) {
    parts(3, length, 32);
    parts(1, length, 64);
    parts(2, length, 1);
  }
  const int64_t rows = int64_t(1) << 33;
  const Part far = part_of(rows * 4 + 3, 200, 64);
  EXPECT(far.row == rows && far.first == 192 && far.count == 8);
  for (int64_t height : {1, 7, 8, 9, 25}) {
    for (int64_t width : {1, 8, 17}) tiles(2, height, width, 8);
  }
  const TileGrid grid = tile_grid(100000, 2000, 3000, 8);
  EXPECT(grid.count() == int64_t(100000) * 250 * 375);
  const TileOrigin end = tile_origin(grid, grid.count() - 1, 8);
  EXPECT(end.image == 99999 && end.y == 1992 && end.x == 2992);
  return failures;
}
