// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "roi_align.h"

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
template <typename T>
struct SparseTile {
  BinRule<accumulate_t<T>> rule;
  const T* map;
  T* pooled;         // [bins, C]
  int64_t channels;  // worked on, of
  int64_t stride;    // C
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
  void (*forward)(const SparseTile<T>&);
  void (*forward_lanes)(const SparseLanes<A>&, A* pooled);  // [bins, kRoIChannels]
  void (*backward_lanes)(const SparseLanes<A>&, const A* pooled);
};

// The table for the instruction set in use.
template <typename T>
const SparsePoolKernels<T>& sparse_pool_kernels();

}  // namespace detops::cpu
