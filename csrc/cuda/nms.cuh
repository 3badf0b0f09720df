// SPDX-License-Identifier: MIT
#pragma once

#include <tuple>

#include "../ops.h"
#include "launch.cuh"
#include "votes.cuh"

// Boxes in score order are settled a chunk at a time, one launch per chunk. Every block tests the
// boxes it owns against those that the chunk before kept; the block that owns the next chunk then
// settles it, while the others still test. Memory is O(N), nothing is copied to the host, and how
// many boxes are kept is known on the device alone.
namespace detops::cuda {

constexpr int kNmsChunk = kThreads;

// A test has
//   Item, what it knows of a box; Item item(place), by the place in score order;
//   bool operator()(by, box): whether one Item would suppress another.
template <typename Test>
struct NmsParams {
  Test test;
  const int64_t* order;   // [N], score descending
  const int64_t* labels;  // [N] in that order, or null
  int64_t count;          // N
  int64_t limit;          // of boxes to keep
  bool* fallen;           // [N] in that order, all false at first
  int64_t* kept;          // [N], places of the boxes kept, of one chunk after the other
  int64_t* end;           // [chunks + 1], how many boxes the chunks before keep; the first is 0
  int64_t* keep;          // [limit], indices of the boxes kept
};

// What a block holds of a chunk: the boxes that the chunk before kept, then its own open ones.
template <typename Test>
struct NmsBlock {
  typename Test::Item items[kNmsChunk];
  int64_t labels[kNmsChunk];
  int64_t places[kNmsChunk];
  // A bit for each open box before that would suppress this one.
  unsigned meets[kNmsChunk][Votes::kWords];
  Votes kept, waiting;
};

template <typename Test>
__device__ void put_box(const NmsParams<Test>& p, NmsBlock<Test>& block, int at, int64_t place) {
  block.items[at] = p.test.item(place);
  block.labels[at] = p.labels == nullptr ? 0 : p.labels[place];
  block.places[at] = place;
}

// Of the chunk's open boxes, one per thread at most, keeps those that no kept box before them
// suppresses. A box whose suppressors have all fallen is kept, one with a kept suppressor falls,
// and the others wait for the next round; the first that waits is always decided.
template <typename Test>
__device__ void settle_chunk(const NmsParams<Test>& p, NmsBlock<Test>& block, int64_t chunk,
                             bool open) {
  const int self = static_cast<int>(threadIdx.x), lane = self % kWarp;
  __syncthreads();  // the boxes that the block holds so far are needed no more
  Votes &kept = block.kept, &waiting = block.waiting;
  waiting.cast(open);
  const int boxes = waiting.total();
  if (open) put_box(p, block, waiting.before(self), chunk * kNmsChunk + self);
  __syncthreads();
  for (int box = self / kWarp; box < boxes; box += Votes::kWords) {
    for (int first = 0; first < box; first += kWarp) {
      const int by = first + lane;
      const bool meets = by < box && block.labels[by] == block.labels[box] &&
                         p.test(block.items[by], block.items[box]);
      const unsigned word = __ballot_sync(0xffffffffu, meets);
      if (lane == 0) block.meets[box][first / kWarp] = word;
    }
  }
  bool waits = self < boxes, stays = false;
  while (true) {
    __syncthreads();
    kept.cast(stays);
    waiting.cast(waits);
    if (waiting.total() == 0) break;
    if (!waits) continue;
    unsigned by_kept = 0, by_waiting = 0;
    for (int w = 0; w * kWarp < self; ++w) {
      by_kept |= block.meets[self][w] & kept.words[w];
      by_waiting |= block.meets[self][w] & waiting.words[w];
    }
    stays = by_kept == 0 && by_waiting == 0;
    waits = by_kept == 0 && by_waiting != 0;
  }
  const int64_t begin = p.end[chunk];
  if (stays) {
    const int64_t at = begin + kept.before(self), place = block.places[self];
    p.kept[at] = place;
    if (at < p.limit) p.keep[at] = p.order[place];
  }
  if (self == 0) p.end[chunk + 1] = begin + kept.total();
}

// Tests the boxes behind `chunk` against those that it kept, and settles the next chunk; a chunk of
// -1 is before the first.
template <typename Test>
__global__ void __launch_bounds__(kNmsChunk) nms_kernel(NmsParams<Test> p, int64_t chunk) {
  __shared__ NmsBlock<Test> block;
  const int self = static_cast<int>(threadIdx.x);
  const int64_t begin = chunk < 0 ? 0 : p.end[chunk], end = p.end[chunk + 1];
  if (end >= p.limit) {  // enough
    if (blockIdx.x == 0 && self == 0) p.end[chunk + 2] = end;
    return;
  }
  const int n = static_cast<int>(end - begin);
  if (self < n) put_box(p, block, self, p.kept[begin + self]);
  __syncthreads();
  bool next = false;
  for (int64_t own = chunk + 1 + blockIdx.x; own * kNmsChunk < p.count; own += gridDim.x) {
    const int64_t place = own * kNmsChunk + self;
    bool open = place < p.count && !p.fallen[place];
    if (open && n > 0) {
      const typename Test::Item item = p.test.item(place);
      const int64_t label = p.labels == nullptr ? 0 : p.labels[place];
      for (int i = 0; i < n && open; ++i) {
        open = block.labels[i] != label || !p.test(block.items[i], item);
      }
      if (!open) p.fallen[place] = true;
    }
    if (own == chunk + 1) next = open;
  }
  if (blockIdx.x == 0) settle_chunk(p, block, chunk + 1, next);
}

// The order of selection: NaN first, ties in input order.
inline Tensor selection_order(const Tensor& scores) {
  // Adding zero turns -0 into +0, so that the two tie.
  return std::get<1>((scores.to(compute_type(scores.scalar_type())) + 0)
                         .sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
}

// int64 [limit] and []: the indices in `order` of the first `limit` boxes that no kept box before
// them suppresses, -1 where there are none left, and how many there are. Without synchronisation.
template <typename Test>
std::tuple<Tensor, Tensor> select_boxes(const char* op, const Tensor& order, const Tensor* idxs,
                                        const Test& test, int64_t limit) {
  const int64_t count = order.size(0), chunks = ceil_div(count, kNmsChunk);
  const Tensor keep = at::full({limit}, -1, order.options());
  const Tensor end = at::zeros({chunks + 1}, order.options());
  const Tensor kept = at::empty_like(order);
  const Tensor fallen = at::zeros({count}, order.options().dtype(at::kBool));
  const Tensor labels = idxs ? idxs->to(at::kLong).index_select(0, order) : Tensor();
  const NmsParams<Test> p{test,
                          order.const_data_ptr<int64_t>(),
                          labels.defined() ? labels.const_data_ptr<int64_t>() : nullptr,
                          count,
                          limit,
                          fallen.mutable_data_ptr<bool>(),
                          kept.mutable_data_ptr<int64_t>(),
                          end.mutable_data_ptr<int64_t>(),
                          keep.mutable_data_ptr<int64_t>()};
  for (int64_t chunk = -1; chunk + 1 < chunks; ++chunk) {
    const int64_t rest = count - (chunk + 1) * kNmsChunk;
    launch(op, nms_kernel<Test>, chunk < 0 ? 1 : blocks_for(rest, kNmsChunk), p, chunk);
  }
  return {keep, end[chunks].clamp_max(limit)};
}

// Those indices alone; the one place that waits for the device.
inline Tensor without_padding(const std::tuple<Tensor, Tensor>& selected) {
  const auto& [keep, count] = selected;
  return keep.narrow(0, 0, count.item<int64_t>()).clone();
}

}  // namespace detops::cuda
