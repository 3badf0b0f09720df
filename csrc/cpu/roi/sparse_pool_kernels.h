// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

#include "roi_align_kernels.h"

namespace detops::cpu {

// The bins of a RoI as sparse rules: bin b is the sum over [begin[b], begin[b + 1]) of weight *
// map[position], positions counted row by row.
template <typename A>
struct BinRule {
  const int32_t* begin;
  const int32_t* position;
  const A* weight;
  int64_t bins;
};

// One RoI on the [H, W, C] map it reads.
template <typename M, typename P>
struct SparseTile {
  BinRule<accumulate_t<std::remove_const_t<M>>> rule;
  M* map;
  P* pooled;                          // [bins, C]
  int64_t channels;                   // worked on, of
  int64_t stride;                     // C
  int64_t first_position, positions;  // backward: as SparsePlanes'
};

// One RoI on some channels of a map as they are, number by number. Backward, on the positions
// [first_position, first_position + positions) of the map, which begins with them.
template <typename M, typename P>
struct SparsePlanes {
  BinRule<accumulate_t<std::remove_const_t<M>>> rule;
  M* map;
  int64_t channels, channel_stride, position_stride;
  P* pooled;  // from the first bin on, `wide` a row
  int64_t wide, pooled_row_stride, pooled_channel_stride, bin_stride;
  int64_t first_position, positions;
};

// One RoI on rows of a map in lanes.
template <typename A>
struct SparseLanes {
  BinRule<A> rule;
  A* map;  // [position, kRoIChannels]
  int64_t first_position;
};

// See sparse_pool.inl.
template <typename T>
struct SparsePoolKernels {
  using A = accumulate_t<T>;
  int64_t lanes;  // of a vector
  void (*forward)(const SparseTile<const T, T>&);
  void (*backward)(const SparseTile<A, const T>&);
  void (*forward_planes)(const SparsePlanes<const T, T>&);
  void (*backward_planes)(const SparsePlanes<A, const T>&);
  void (*forward_lanes)(const SparseLanes<A>&, A* pooled);  // [bins, kRoIChannels]
  void (*backward_lanes)(const SparseLanes<A>&, const A* pooled);
};

// The table for the instruction set in use.
template <typename T>
const SparsePoolKernels<T>& sparse_pool_kernels();

}  // namespace detops::cpu
