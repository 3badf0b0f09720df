// SPDX-License-Identifier: MIT
#pragma once

#include "block.cuh"
#include "launch.cuh"
#include "sort.cuh"

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
  int* masks = nullptr;       // [N, kNmsWords], mask bits of the earlier boxes of the chunk that
                              // would suppress a box; later words are not written
  bool* removed = nullptr;    // [N] in that order, suppressed or below the score threshold
  int* tested = nullptr;      // [chunks], number of tested parts of a chunk; initially 0
  int* kept = nullptr;        // [N], positions of the kept boxes, chunk by chunk
  int64_t* end = nullptr;     // [chunks + 1], boxes kept by all previous chunks; the first is 0
  int64_t* keep = nullptr;    // [limit], indices of the kept boxes, padded with -1
  int64_t* n_kept = nullptr;  // number of kept boxes, at most limit

  __device__ int64_t label(int64_t position) const {
    return labels == nullptr ? 0 : labels[position];
  }

  __device__ void set_end(int64_t chunk, int64_t n) const {
    end[chunk + 1] = n;
    if (chunk + 1 == chunks) *n_kept = math::min(n, limit);
  }
};

// Returns how many boxes a block tests at a time, a multiple of its warps. Small inputs use small
// parts, so that they occupy the whole device.
inline int part_size(int64_t boxes) {
  return boxes <= 1024 * kNmsWarps ? kNmsWarps : 4 * kNmsWarps;
}

// Boxes in shared memory.
template <typename Test>
struct SharedBoxes {
  typename Test::Item items[kNmsChunk];
  int64_t labels[kNmsChunk];

  __device__ void load(const NmsParams<Test>& p, int at, int64_t position) {
    items[at] = p.items[position];
    labels[at] = p.label(position);
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
using LocalItem = std::conditional_t<sizeof(Item) <= 4 * sizeof(double), Item, const Item&>;

// Keeps the boxes of a chunk that no earlier kept box suppresses. `begin` is the number of boxes
// that previous chunks kept. Each thread owns a box and works in rounds. A box is removed if one of
// its suppressors is kept. It is kept if all of them are removed. Otherwise it stays undecided.
// Every round decides at least the first undecided box.
template <typename Test>
__device__ void settle_chunk(const NmsParams<Test>& p, int64_t chunk, int64_t begin) {
  __shared__ Votes<kNmsChunk> kept[2], undecided[2];  // alternate by round, to save a barrier
  const int self = static_cast<int>(threadIdx.x);
  const int64_t position = chunk * kNmsChunk + self;
  const volatile bool* removed = p.removed;  // written by other blocks in this launch
  bool is_undecided = position < p.count && !removed[position], is_kept = false;
  unsigned mask[kNmsWords];
  for (int w = 0; w < kNmsWords; ++w) {
    mask[w] = is_undecided && w * kWarp < self ? p.masks[position * kNmsWords + w] : 0;
  }
  int turn = 0;
  for (;; turn = 1 - turn) {
    kept[turn].put(is_kept);
    undecided[turn].put(is_undecided);
    __syncthreads();
    if (undecided[turn].total() == 0) break;
    if (is_undecided) {
      unsigned by_kept = 0, by_undecided = 0;
      for (int w = 0; w < kNmsWords; ++w) {
        by_kept |= mask[w] & kept[turn].words[w];
        by_undecided |= mask[w] & undecided[turn].words[w];
      }
      is_kept = by_kept == 0 && by_undecided == 0;
      is_undecided = by_kept == 0 && by_undecided != 0;
    }
  }
  if (is_kept) {
    const int64_t at = begin + kept[turn].count_before(self);
    p.kept[at] = static_cast<int>(position);
    if (at < p.limit) p.keep[at] = p.order[position];
  }
  if (self == 0) p.set_end(chunk, begin + kept[turn].total());
}

// Called after a block has tested one of the `parts` of a chunk. Settles the chunk if that was the
// last part.
template <typename Test>
__device__ void finish_part(const NmsParams<Test>& p, int64_t chunk, int64_t parts, int64_t begin) {
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
__global__ void __launch_bounds__(kNmsChunk) nms_masks_kernel(NmsParams<Test> p, int size) {
  __shared__ SharedBoxes<Test> boxes;
  const int self = static_cast<int>(threadIdx.x), warp = self / kWarp, lane = self % kWarp;
  const int64_t first_chunk_parts = ceil_div(math::min(p.count, int64_t(kNmsChunk)), int64_t(size));
  for (int64_t part = blockIdx.x; part * size < p.count; part += gridDim.x) {
    const int64_t begin = part * size / kNmsChunk * kNmsChunk;
    const int first = static_cast<int>(part * size - begin);
    const int end = static_cast<int>(math::min(int64_t(first + size), p.count - begin));
    __syncthreads();
    if (self < end) boxes.load(p, self, begin + self);
    __syncthreads();
    for (int box = first + warp; box < end; box += kNmsWarps) {
      int lane_word = 0;
      for (int word = 0; word * kWarp < box; ++word) {
        const unsigned bits =
            boxes.suppressors(p.test, word * kWarp, box, boxes.items[box], boxes.labels[box]);
        if (lane == word) lane_word = static_cast<int>(bits);
      }
      if (lane * kWarp < box) p.masks[(begin + box) * kNmsWords + lane] = lane_word;
    }
    if (begin == 0) finish_part(p, 0, first_chunk_parts, 0);
  }
}

// Tests the boxes after `chunk` against those that `chunk` kept, and settles the next chunk.
template <typename Test>
__global__ void __launch_bounds__(kNmsChunk)
    nms_kernel(NmsParams<Test> p, int64_t chunk, int size) {
  __shared__ SharedBoxes<Test> kept;
  const int self = static_cast<int>(threadIdx.x), warp = self / kWarp, lane = self % kWarp;
  const int64_t begin = p.end[chunk], end = p.end[chunk + 1];
  if (end >= p.limit) {  // limit reached
    if (blockIdx.x == 0 && self == 0) p.set_end(chunk + 1, end);
    return;
  }
  const int n = static_cast<int>(end - begin);
  if (self < n) kept.load(p, self, p.kept[begin + self]);
  __syncthreads();
  const int64_t next_begin = (chunk + 1) * kNmsChunk;
  const int64_t parts = ceil_div(p.count - next_begin, int64_t(size));
  const int64_t next_chunk_parts = math::min(parts, int64_t(kNmsChunk / size));
  for (int64_t part = blockIdx.x; part < (n > 0 ? parts : next_chunk_parts); part += gridDim.x) {
    const int64_t first = next_begin + part * size, last = math::min(first + size, p.count);
    for (int64_t position = first + warp; position < last; position += kNmsWarps) {
      if (p.removed[position]) continue;
      const LocalItem<typename Test::Item> box = p.items[position];
      const int64_t label = p.label(position);
      bool suppressed = false;
      for (int i = 0; !suppressed && i < n; i += kWarp) {
        suppressed = kept.suppressors(p.test, i, n, box, label) != 0;
      }
      if (suppressed && lane == 0) p.removed[position] = true;
    }
    if (part < next_chunk_parts) finish_part(p, chunk + 1, next_chunk_parts, end);
  }
}

// Initialises the buffers of `p`. make_item(index) returns the Item of a box. `labels` holds the
// labels of all boxes in input order, or is null.
template <typename Test, typename MakeItem>
__global__ void prepare_nms_kernel(NmsParams<Test> p, MakeItem make_item, const int64_t* labels) {
  DETOPS_FOR_EACH(i, math::max(math::max(p.count, p.limit), int64_t(1))) {
    if (i == 0) *p.n_kept = p.end[0] = 0;
    if (i < p.limit) p.keep[i] = -1;
    if (i < p.chunks) p.tested[i] = 0;
    if (i >= p.count) continue;
    const int box = p.order[i];
    p.items[i] = make_item(box);
    if (labels != nullptr) p.labels[i] = labels[box];
    p.removed[i] = false;
  }
}

// Marks boxes whose score is NaN or not above the threshold as removed.
inline void drop_low_scores(const Tensor& scores, double threshold, const int* order,
                            bool* removed) {
  const int64_t stride = scores.stride(0);
  DETOPS_FLOAT_SWITCH(scores.scalar_type(), [&] {
    const scalar_t* score = elements(scores);
    for_each(scores.size(0), [=] __device__(int64_t i) {
      removed[i] = !(static_cast<double>(score[order[i] * stride]) > threshold);
    });
  });
}

// The arguments that select the kept boxes; idxs, the labels, may be null.
struct NmsOptions {
  const Tensor& scores;
  const Tensor* idxs;
  std::optional<double> score_threshold;
  int64_t limit;
};

inline int64_t output_limit(const Tensor& boxes, std::optional<int64_t> max_output) {
  return std::min(boxes.size(0), max_output.value_or(boxes.size(0)));
}

// keep, int64 [limit]: indices in selection order of the first `limit` boxes that no earlier kept
// box suppresses, padded with -1. count, int64 []: how many they are.
struct Selected {
  Tensor keep, count;
};

// Runs NMS without synchronising with the host.
template <typename Test, typename MakeItem>
Selected select_boxes(const Test& test, const MakeItem& make_item, const NmsOptions& options) {
  const Tensor order = selection_order(options.scores);
  const Tensor labels = options.idxs ? options.idxs->to(kLong).contiguous() : Tensor();
  const int64_t limit = options.limit, count = order.size(0), chunks = ceil_div(count, kNmsChunk);
  const auto longs = order.options().dtype(kLong);
  const Selected selected{empty({limit}, longs), empty({}, longs)};
  NmsParams<Test> p{test, count, limit, chunks, elements(order)};
  p.keep = elements(selected.keep);
  p.n_kept = elements(selected.count);
  Tensor memory;
  std::tie(p.items, p.labels, p.masks, p.removed, p.tested, p.kept, p.end) =
      allocate_arrays<typename Test::Item, int64_t, int, bool, int, int, int64_t>(
          memory, longs, count, labels.defined() ? count : 0, count * kNmsWords, count, chunks,
          count, chunks + 1);
  if (!labels.defined()) p.labels = nullptr;
  launch(prepare_nms_kernel<Test, MakeItem>, blocks_for(std::max(count, limit)), p, make_item,
         labels);
  if (options.score_threshold) {
    drop_low_scores(options.scores, *options.score_threshold, p.order, p.removed);
  }
  const auto start = [&](auto kernel, int64_t boxes, auto... chunk) {
    const int part = part_size(boxes);
    launch(kernel, {blocks_for(boxes, part), kNmsChunk}, p, chunk..., part);
  };
  if (count > 0) start(nms_masks_kernel<Test>, count);
  for (int64_t chunk = 0; chunk + 1 < chunks; ++chunk) {
    start(nms_kernel<Test>, count - (chunk + 1) * kNmsChunk, chunk);
  }
  return selected;
}

// Returns the indices without the padding. Only this function synchronises with the device.
inline Tensor without_padding(const Selected& selected) {
  constexpr int64_t kSmallBytes = 1 << 16;  // a buffer this small may stay partly unused
  const auto& [keep, count] = selected;
  const Tensor kept = keep.narrow(0, 0, count.item<int64_t>());
  return keep.nbytes() <= std::max(kSmallBytes, 2 * kept.nbytes()) ? kept : kept.clone();
}

}  // namespace detops::cuda
