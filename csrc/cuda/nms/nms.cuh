// SPDX-License-Identifier: MIT
#pragma once

#include "../common/block.cuh"
#include "../common/launch.cuh"
#include "../common/sort.cuh"

// Settles boxes in score order, one chunk at a time. The first launch computes for all chunks which
// boxes of a chunk would suppress each other. Then there is one launch per chunk except the last,
// which tests all later boxes against those that the chunk kept. The last block to finish testing
// a chunk settles it, while the other blocks continue. Memory is O(N). Nothing is copied to the
// host: the number of kept boxes stays on the device.
namespace detops::cuda {

constexpr int kNmsChunk = 512;                // boxes per chunk, threads per block
constexpr int kNmsWords = kNmsChunk / kWarp;  // mask words per chunk
constexpr int kNmsWarps = kNmsChunk / kWarp;

// A Test provides
//   Item: its representation of a box;
//   bool operator()(by, box): whether Item `by` would suppress Item `box`.
template <typename Test>
struct NmsParams {
  Test test;
  int64_t count;                         // N
  int64_t limit;                         // maximum number of boxes to keep
  int64_t chunks;                        // ceil(N / kNmsChunk)
  const int* order;                      // [N], score descending
  typename Test::Item* items = nullptr;  // [N] in that order
  int64_t* labels = nullptr;             // [N] in that order, or null
  int* meets = nullptr;       // [N, kNmsWords], mask bits of the earlier boxes of the chunk that
                              // would suppress a box; later words are not written
  bool* fallen = nullptr;     // [N] in that order, suppressed or below the score threshold
  int* tested = nullptr;      // [chunks], number of tested parts of a chunk; initially 0
  int* kept = nullptr;        // [N], positions of the kept boxes, chunk by chunk
  int64_t* end = nullptr;     // [chunks + 1], boxes kept by all previous chunks; the first is 0
  int64_t* keep = nullptr;    // [limit], indices of the kept boxes, padded with -1
  int64_t* number = nullptr;  // number of kept boxes, at most limit

  __device__ int64_t label(int64_t place) const { return labels == nullptr ? 0 : labels[place]; }

  __device__ void set_end(int64_t chunk, int64_t n) const {
    end[chunk + 1] = n;
    if (chunk + 1 == chunks) *number = math::min(n, limit);
  }
};

// Returns how many boxes a block tests at a time, a multiple of its warps. Small inputs use small
// parts, so that they occupy the whole device.
inline int nms_part(int64_t boxes) { return boxes <= 1024 * kNmsWarps ? kNmsWarps : 4 * kNmsWarps; }

// Boxes in shared memory.
template <typename Test>
struct HeldBoxes {
  typename Test::Item items[kNmsChunk];
  int64_t labels[kNmsChunk];

  __device__ void hold(const NmsParams<Test>& p, int at, int64_t place) {
    items[at] = p.items[place];
    labels[at] = p.label(place);
  }

  // Returns mask bits of the boxes that would suppress `box`, among the 32 from `first` on and
  // before `end`. All threads of the warp must call it.
  __device__ unsigned suppressors(const Test& test, int first, int end,
                                  const typename Test::Item& box, int64_t label) const {
    const int i = first + static_cast<int>(threadIdx.x) % kWarp;
    return __ballot_sync(0xffffffffu, i < end && labels[i] == label && test(items[i], box));
  }
};

// A thread's Item: a copy in registers, or a reference if it is too large for them.
template <typename Item>
using OwnItem = std::conditional_t<sizeof(Item) <= 4 * sizeof(double), Item, const Item&>;

// Keeps the boxes of a chunk that no earlier kept box suppresses. `begin` is the number of boxes
// that previous chunks kept. Each thread owns a box and works in rounds. A box falls if one of its
// suppressors is kept. It is kept if all of them have fallen. Otherwise it waits for the next
// round. Every round decides at least the first waiting box.
template <typename Test>
__device__ void settle_chunk(const NmsParams<Test>& p, int64_t chunk, int64_t begin) {
  __shared__ Votes<kNmsChunk> kept[2], waiting[2];  // alternate by round, to save a barrier
  const int self = static_cast<int>(threadIdx.x);
  const int64_t place = chunk * kNmsChunk + self;
  const volatile bool* fallen = p.fallen;  // written by other blocks in this launch
  bool waits = place < p.count && !fallen[place], stays = false;
  unsigned meets[kNmsWords];
  for (int w = 0; w < kNmsWords; ++w) {
    meets[w] = waits && w * kWarp < self ? p.meets[place * kNmsWords + w] : 0;
  }
  int turn = 0;
  for (;; turn = 1 - turn) {
    kept[turn].put(stays);
    waiting[turn].put(waits);
    __syncthreads();
    if (waiting[turn].total() == 0) break;
    if (waits) {
      unsigned by_kept = 0, by_waiting = 0;
      for (int w = 0; w < kNmsWords; ++w) {
        by_kept |= meets[w] & kept[turn].words[w];
        by_waiting |= meets[w] & waiting[turn].words[w];
      }
      stays = by_kept == 0 && by_waiting == 0;
      waits = by_kept == 0 && by_waiting != 0;
    }
  }
  if (stays) {
    const int64_t at = begin + kept[turn].before(self);
    p.kept[at] = static_cast<int>(place);
    if (at < p.limit) p.keep[at] = p.order[place];
  }
  if (self == 0) p.set_end(chunk, begin + kept[turn].total());
}

// Called after a block has tested one of the `parts` of a chunk. Settles the chunk if that was the
// last part.
template <typename Test>
__device__ void end_part(const NmsParams<Test>& p, int64_t chunk, int64_t parts, int64_t begin) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(p.tested + chunk, 1) + 1 == parts;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  settle_chunk(p, chunk, begin);
}

// Tests the boxes of each chunk against each other, and settles the first chunk.
template <typename Test>
__global__ void __launch_bounds__(kNmsChunk) meets_kernel(NmsParams<Test> p, int size) {
  __shared__ HeldBoxes<Test> held;
  const int self = static_cast<int>(threadIdx.x), warp = self / kWarp, lane = self % kWarp;
  const int64_t of_first = ceil_div(math::min(p.count, int64_t(kNmsChunk)), int64_t(size));
  for (int64_t part = blockIdx.x; part * size < p.count; part += gridDim.x) {
    const int64_t begin = part * size / kNmsChunk * kNmsChunk;
    const int first = static_cast<int>(part * size - begin);
    const int end = static_cast<int>(math::min(int64_t(first + size), p.count - begin));
    __syncthreads();
    if (self < end) held.hold(p, self, begin + self);
    __syncthreads();
    for (int box = first + warp; box < end; box += kNmsWarps) {
      int mine = 0;
      for (int word = 0; word * kWarp < box; ++word) {
        const unsigned bits =
            held.suppressors(p.test, word * kWarp, box, held.items[box], held.labels[box]);
        if (lane == word) mine = static_cast<int>(bits);
      }
      if (lane * kWarp < box) p.meets[(begin + box) * kNmsWords + lane] = mine;
    }
    if (begin == 0) end_part(p, 0, of_first, 0);
  }
}

// Tests the boxes after `chunk` against those that `chunk` kept, and settles the next chunk.
template <typename Test>
__global__ void __launch_bounds__(kNmsChunk)
    nms_kernel(NmsParams<Test> p, int64_t chunk, int size) {
  __shared__ HeldBoxes<Test> kept;
  const int self = static_cast<int>(threadIdx.x), warp = self / kWarp, lane = self % kWarp;
  const int64_t begin = p.end[chunk], end = p.end[chunk + 1];
  if (end >= p.limit) {  // limit reached
    if (blockIdx.x == 0 && self == 0) p.set_end(chunk + 1, end);
    return;
  }
  const int n = static_cast<int>(end - begin);
  if (self < n) kept.hold(p, self, p.kept[begin + self]);
  __syncthreads();
  const int64_t behind = (chunk + 1) * kNmsChunk;
  const int64_t parts = ceil_div(p.count - behind, int64_t(size));
  const int64_t of_next = math::min(parts, int64_t(kNmsChunk / size));
  for (int64_t part = blockIdx.x; part < (n > 0 ? parts : of_next); part += gridDim.x) {
    const int64_t first = behind + part * size, last = math::min(first + size, p.count);
    for (int64_t place = first + warp; place < last; place += kNmsWarps) {
      if (p.fallen[place]) continue;
      const OwnItem<typename Test::Item> box = p.items[place];
      const int64_t label = p.label(place);
      bool falls = false;
      for (int i = 0; !falls && i < n; i += kWarp) {
        falls = kept.suppressors(p.test, i, n, box, label) != 0;
      }
      if (falls && lane == 0) p.fallen[place] = true;
    }
    if (part < of_next) end_part(p, chunk + 1, of_next, end);
  }
}

// Initialises the buffers of `p`. item_of(index) returns the Item of a box. `labels` holds the
// labels of all boxes in input order, or is null.
template <typename Test, typename ItemOf>
__global__ void prepare_nms_kernel(NmsParams<Test> p, ItemOf item_of, const int64_t* labels) {
  DETOPS_FOR_EACH(i, math::max(math::max(p.count, p.limit), int64_t(1))) {
    if (i == 0) *p.number = p.end[0] = 0;
    if (i < p.limit) p.keep[i] = -1;
    if (i < p.chunks) p.tested[i] = 0;
    if (i >= p.count) continue;
    const int box = p.order[i];
    p.items[i] = item_of(box);
    if (labels != nullptr) p.labels[i] = labels[box];
    p.fallen[i] = false;
  }
}

// Marks boxes whose score is NaN or not above the threshold as fallen.
inline void drop_scores(const Tensor& scores, double threshold, const int* order, bool* fallen) {
  const int64_t stride = scores.stride(0);
  DETOPS_FLOAT_SWITCH(scores.scalar_type(), [&] {
    const scalar_t* score = elements(scores);
    for_each(scores.size(0), [=] __device__(int64_t i) {
      fallen[i] = !(static_cast<double>(score[order[i] * stride]) > threshold);
    });
  });
}

// The arguments that select the kept boxes; idxs, the labels, may be null.
struct Wanted {
  const Tensor& scores;
  const Tensor* idxs;
  std::optional<double> score_threshold;
  int64_t limit;
};

inline int64_t limit_of(const Tensor& boxes, std::optional<int64_t> max_output) {
  return std::min(boxes.size(0), max_output.value_or(boxes.size(0)));
}

// keep, int64 [limit]: indices in selection order of the first `limit` boxes that no earlier kept
// box suppresses, padded with -1. number, int64 []: how many they are.
struct Selected {
  Tensor keep, number;
};

// Runs NMS without synchronising with the host.
template <typename Test, typename ItemOf>
Selected select_boxes(const Test& test, const ItemOf& item_of, const Wanted& wanted) {
  const Tensor order = selection_order(wanted.scores);
  const Tensor labels = wanted.idxs ? wanted.idxs->to(kLong).contiguous() : Tensor();
  const int64_t limit = wanted.limit, count = order.size(0), chunks = ceil_div(count, kNmsChunk);
  const auto longs = order.options().dtype(kLong);
  const Selected selected{empty({limit}, longs), empty({}, longs)};
  NmsParams<Test> p{test, count, limit, chunks, elements(order)};
  p.keep = elements(selected.keep);
  p.number = elements(selected.number);
  Tensor memory;
  std::tie(p.items, p.labels, p.meets, p.fallen, p.tested, p.kept, p.end) =
      arrays<typename Test::Item, int64_t, int, bool, int, int, int64_t>(
          memory, longs, count, labels.defined() ? count : 0, count * kNmsWords, count, chunks,
          count, chunks + 1);
  if (!labels.defined()) p.labels = nullptr;
  launch(prepare_nms_kernel<Test, ItemOf>, blocks_for(std::max(count, limit)), p, item_of, labels);
  if (wanted.score_threshold) {
    drop_scores(wanted.scores, *wanted.score_threshold, p.order, p.fallen);
  }
  const auto start = [&](auto kernel, int64_t boxes, auto... chunk) {
    const int part = nms_part(boxes);
    launch(kernel, {blocks_for(boxes, part), kNmsChunk}, p, chunk..., part);
  };
  if (count > 0) start(meets_kernel<Test>, count);
  for (int64_t chunk = 0; chunk + 1 < chunks; ++chunk) {
    start(nms_kernel<Test>, count - (chunk + 1) * kNmsChunk, chunk);
  }
  return selected;
}

// Returns the indices without the padding. Only this function synchronises with the device.
inline Tensor without_padding(const Selected& selected) {
  constexpr int64_t kLittle = 1 << 16;  // bytes; a buffer this small may stay partly unused
  const auto& [keep, number] = selected;
  const Tensor kept = keep.narrow(0, 0, number.item<int64_t>());
  return keep.nbytes() <= std::max(kLittle, 2 * kept.nbytes()) ? kept : kept.clone();
}

}  // namespace detops::cuda
