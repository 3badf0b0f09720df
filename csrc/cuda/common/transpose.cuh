// SPDX-License-Identifier: MIT
#pragma once

#include "launch.cuh"

namespace detops::cuda {

struct Matrices {
  int64_t count, rows, columns;
  int64_t apart;  // row stride in elements; the column stride is 1
};

// Side of a block's square tile: large enough for each thread to have many loads in flight, small
// enough for shared memory.
template <typename Element>
constexpr int kTransposeTile = sizeof(Element) > 8 ? 32 : 64;

// to[k][j][i] = from[begin(k) + i * apart + j]. Adjacent threads read and write adjacent elements.
template <typename Element, typename Begin>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(Matrices m, Begin begin, const Element* from, Element* to) {
  constexpr int kTile = kTransposeTile<Element>, kDown = kThreads / kTile;
  // Avoids bank conflicts: a row is an odd number of banks, or of elements larger than a bank.
  constexpr int kPad = sizeof(Element) < 4 ? 4 / sizeof(Element) : 1;
  __shared__ Element tile[kTile][kTile + kPad];
  const int across = static_cast<int>(threadIdx.x) % kTile;
  const int down = static_cast<int>(threadIdx.x) / kTile;
  const int64_t below = ceil_div(m.rows, kTile), beside = ceil_div(m.columns, kTile);
  for (int64_t t = blockIdx.x; t < m.count * below * beside; t += gridDim.x) {
    const int64_t matrix = t / (below * beside);
    const int64_t row = t % below * kTile, column = t / below % beside * kTile;
    const Element* in = from + begin(matrix) + row * m.apart + column + across;
    for (int k = 0; k < kTile / kDown; ++k) {  // constant count: loads are batched
      const int i = down + k * kDown;
      if (row + i < m.rows && column + across < m.columns) tile[i][across] = in[i * m.apart];
    }
    __syncthreads();
    Element* out = to + (matrix * m.columns + column) * m.rows + row + across;
    for (int k = 0; k < kTile / kDown; ++k) {
      const int i = down + k * kDown;
      if (column + i < m.columns && row + across < m.rows) out[i * m.rows] = tile[across][i];
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
