// SPDX-License-Identifier: MIT
#pragma once

#include "launch.cuh"

namespace detops::cuda {

struct Matrices {
  int64_t count, rows, columns;
  int64_t row_stride;  // in elements; the column stride is 1
};

// Side of a block's square tile: large enough for each thread to have many loads in flight, small
// enough for shared memory.
template <typename Element>
constexpr int kTransposeTile = sizeof(Element) > 8 ? 32 : 64;

// to[k][j][i] = from[begin(k) + i * row_stride + j]. Adjacent threads read and write adjacent
// elements.
template <typename Element, typename Begin>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(Matrices m, Begin begin, const Element* from, Element* to) {
  constexpr int kTile = kTransposeTile<Element>, kRowsPerPass = kThreads / kTile;
  // Avoids bank conflicts: a row is an odd number of banks, or of elements larger than a bank.
  constexpr int kPad = sizeof(Element) < 4 ? 4 / sizeof(Element) : 1;
  __shared__ Element tile[kTile][kTile + kPad];
  const int tx = static_cast<int>(threadIdx.x) % kTile;
  const int ty = static_cast<int>(threadIdx.x) / kTile;
  const int64_t row_tiles = ceil_div(m.rows, kTile), column_tiles = ceil_div(m.columns, kTile);
  for (int64_t t = blockIdx.x; t < m.count * row_tiles * column_tiles; t += gridDim.x) {
    const int64_t matrix = t / (row_tiles * column_tiles);
    const int64_t row = t % row_tiles * kTile, column = t / row_tiles % column_tiles * kTile;
    const Element* in = from + begin(matrix) + row * m.row_stride + column + tx;
    for (int k = 0; k < kTile / kRowsPerPass; ++k) {  // constant count: loads are batched
      const int i = ty + k * kRowsPerPass;
      if (row + i < m.rows && column + tx < m.columns) tile[i][tx] = in[i * m.row_stride];
    }
    __syncthreads();
    Element* out = to + (matrix * m.columns + column) * m.rows + row + tx;
    for (int k = 0; k < kTile / kRowsPerPass; ++k) {
      const int i = ty + k * kRowsPerPass;
      if (column + i < m.columns && row + tx < m.rows) out[i * m.rows] = tile[tx][i];
    }
    __syncthreads();
  }
}

template <typename Element, typename Begin>
void transpose_matrices(const Matrices& m, const Begin& begin, const Element* from, Element* to) {
  constexpr int kTile = kTransposeTile<Element>;
  launch(transpose_kernel<Element, Begin>,
         blocks_for(m.count * ceil_div(m.rows, kTile) * ceil_div(m.columns, kTile), 1), m, begin,
         from, to);
}

}  // namespace detops::cuda
