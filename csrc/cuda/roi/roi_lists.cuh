// SPDX-License-Identifier: MIT
#pragma once

#include <tuple>

#include "../../math/host_device.h"
#include "../../ops.h"
#include "../common/ballot.cuh"
#include "../common/launch.cuh"

namespace detops::cuda {

// The pixels of a map that a RoI may reach, generously.
struct Window {
  int64_t top = 0, bottom = 0, left = 0, right = 0;  // [top, bottom) x [left, right)

  __device__ bool meets(int64_t y, int64_t x, int64_t side) const {
    return top < y + side && bottom > y && left < x + side && right > x;
  }
};

// One side of a Window: what samples in [low, high] may read of `size` pixels.
template <typename A>
__device__ void reach_of_samples(A low, A high, int64_t size, int64_t& begin, int64_t& end) {
  begin = end = 0;
  if (!(low <= high)) return;
  begin = static_cast<int64_t>(math::min(math::max(double(low) - 2, 0.0), double(size)));
  end = static_cast<int64_t>(math::min(math::max(double(high) + 3, 0.0), double(size)));
}

// The RoIs of each map, in their order.
struct RoILists {
  Window* windows;  // [K]
  int64_t* map;     // [K], -1 for a RoI that reads none
  int64_t* order;   // [K], map by map
  int64_t* begin;   // [maps + 1], of each map in `order`
};

template <typename Place>
__global__ void place_rois_kernel(Place place, int64_t count, RoILists lists) {
  DETOPS_FOR_EACH(k, count) { lists.map[k] = place(k, lists.windows[k]); }
}

// A block per map: it counts the RoIs of the maps before, then lists its own.
static __global__ void list_rois_kernel(RoILists lists, int64_t count, int64_t maps) {
  __shared__ Votes<> votes;
  const int self = static_cast<int>(threadIdx.x);
  for (int64_t own = blockIdx.x; own < maps; own += gridDim.x) {
    int64_t at = 0;
    for (int64_t first = 0; first < count; first += kThreads) {
      const int64_t k = first + self, map = k < count ? lists.map[k] : -1;
      __syncthreads();
      votes.cast(map >= 0 && map < own);
      at += votes.total();
    }
    if (self == 0) lists.begin[own] = at;
    for (int64_t first = 0; first < count; first += kThreads) {
      const int64_t k = first + self;
      const bool mine = k < count && lists.map[k] == own;
      __syncthreads();
      votes.cast(mine);
      if (mine) lists.order[at + votes.before(self)] = k;
      at += votes.total();
    }
    if (self == 0 && own + 1 == maps) lists.begin[maps] = at;
  }
}

// place(k, window) sets RoI k's window, empty before, and gives its map. The lists live as long as
// the tensor.
template <typename Place>
std::tuple<RoILists, Tensor> list_rois(const char* op, const Place& place, int64_t count,
                                       int64_t maps, const Options& options) {
  constexpr int64_t kWindow = sizeof(Window) / sizeof(int64_t);
  const Tensor memory = empty({(kWindow + 2) * count + maps + 1}, options.dtype(kLong));
  int64_t* numbers = memory.mutable_data_ptr<int64_t>();
  int64_t* map = numbers + kWindow * count;
  const RoILists lists{reinterpret_cast<Window*>(numbers), map, map + count, map + 2 * count};
  launch(op, place_rois_kernel<Place>, blocks_for(count), place, count, lists);
  launch(op, list_rois_kernel, blocks_for(maps, 1), lists, count, maps);
  return {lists, memory};
}

// Calls visit(rois, n), all threads of the block together, for the RoIs of the map that may reach
// the square of `side` pixels at (y, x), in their order; n of them at a time, `size` at most.
template <int size, typename Visit>
__device__ void visit_groups(const RoILists& lists, int64_t map, int64_t y, int64_t x, int64_t side,
                             const Visit& visit) {
  __shared__ Votes<> votes;
  __shared__ int64_t reaching[kThreads];
  const int64_t end = lists.begin[map + 1];
  for (int64_t first = lists.begin[map]; first < end; first += kThreads) {
    const int64_t at = first + threadIdx.x, k = at < end ? lists.order[at] : -1;
    const bool reaches = k >= 0 && lists.windows[k].meets(y, x, side);
    __syncthreads();
    votes.cast(reaches);
    if (reaches) reaching[votes.before(static_cast<int>(threadIdx.x))] = k;
    const int n = votes.total();
    __syncthreads();
    for (int i = 0; i < n; i += size) visit(reaching + i, math::min(size, n - i));
  }
}

// One at a time.
template <typename Visit>
__device__ void visit_rois(const RoILists& lists, int64_t map, int64_t y, int64_t x, int64_t side,
                           const Visit& visit) {
  visit_groups<1>(lists, map, y, x, side, [&](const int64_t* roi, int) { visit(*roi); });
}

}  // namespace detops::cuda
