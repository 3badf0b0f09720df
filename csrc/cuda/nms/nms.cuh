// SPDX-License-Identifier: MIT
#pragma once

#include "../common/block.cuh"
#include "../common/launch.cuh"
#include "../common/sort.cuh"

// Boxes in score order are settled a chunk at a time. Which boxes of a chunk would suppress which
// is computed for all chunks at once; then there is a launch per chunk, whose blocks test the boxes
// behind it against those that it kept. Of the blocks that test the next chunk, the last to end
// settles it, while the others go on. Memory is O(N), nothing is copied to the host, and how many
// boxes are kept is known on the device alone.
namespace detops::cuda {

constexpr int kNmsChunk = 512;                // and threads of a block
constexpr int kNmsPart = 64;                  // boxes that a block tests at a time
constexpr int kNmsWords = kNmsChunk / kWarp;  // of bits for a chunk
constexpr int kNmsWarps = kNmsChunk / kWarp;

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
  int* meets;             // [N, kNmsWords], a bit for each box before one in its chunk that would
                          // suppress it; nothing behind those
  bool* fallen;           // [N] in that order, all false at first
  int* tested;            // [chunks], how many parts of a chunk are; all 0 at first
  int64_t* kept;          // [N], places of the boxes kept, of one chunk after the other
  int64_t* end;           // [chunks + 1], how many boxes the chunks before keep; the first is 0
  int64_t* keep;          // [limit], indices of the boxes kept
};

// Boxes in a block's memory.
template <typename Test, int size>
struct HeldBoxes {
  typename Test::Item items[size];
  int64_t labels[size];

  __device__ void hold(const NmsParams<Test>& p, int at, int64_t place) {
    items[at] = p.test.item(place);
    labels[at] = p.labels == nullptr ? 0 : p.labels[place];
  }
};

// A bit for each of 32 boxes, from `first` on and before `end`: would it suppress `box`? All
// threads of a warp take part.
template <typename Test, int n, int m>
__device__ unsigned suppressors(const Test& test, const HeldBoxes<Test, n>& by, int first, int end,
                                const HeldBoxes<Test, m>& boxes, int box) {
  const int i = first + static_cast<int>(threadIdx.x) % kWarp;
  return __ballot_sync(0xffffffffu, i < end && by.labels[i] == boxes.labels[box] &&
                                        test(by.items[i], boxes.items[box]));
}

template <typename Test>
__global__ void __launch_bounds__(kNmsChunk) meets_kernel(NmsParams<Test> p) {
  __shared__ HeldBoxes<Test, kNmsChunk> held;
  const int self = static_cast<int>(threadIdx.x), warp = self / kWarp, lane = self % kWarp;
  for (int64_t part = blockIdx.x; part * kNmsPart < p.count; part += gridDim.x) {
    const int64_t begin = part * kNmsPart / kNmsChunk * kNmsChunk;
    const int first = static_cast<int>(part * kNmsPart - begin);
    const int end = static_cast<int>(math::min(int64_t(first + kNmsPart), p.count - begin));
    __syncthreads();
    if (self < end) held.hold(p, self, begin + self);
    __syncthreads();
    for (int box = first + warp; box < end; box += kNmsWarps) {
      for (int word = 0; word * kWarp < box; ++word) {
        const unsigned bits = suppressors(p.test, held, word * kWarp, box, held, box);
        if (lane == 0) p.meets[(begin + box) * kNmsWords + word] = static_cast<int>(bits);
      }
    }
  }
}

// Keeps the boxes of a chunk that no kept box before them suppresses; `begin` is how many there
// are. A thread has a box. One whose suppressors have all fallen is kept, one with a kept
// suppressor falls, and the others wait for the next round; the first that waits is always decided.
template <typename Test>
__device__ void settle_chunk(const NmsParams<Test>& p, int64_t chunk, int64_t begin) {
  __shared__ Votes<kNmsChunk> kept[2], waiting[2];  // of two rounds in turn, to save a barrier
  const int self = static_cast<int>(threadIdx.x);
  const int64_t place = chunk * kNmsChunk + self;
  const volatile bool* fallen = p.fallen;  // that other blocks have written in this launch
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
    p.kept[at] = place;
    if (at < p.limit) p.keep[at] = p.order[place];
  }
  if (self == 0) p.end[chunk + 1] = begin + kept[turn].total();
}

// Tests the boxes behind `chunk` against those that it kept, and settles the next chunk; a chunk of
// -1 is before the first.
template <typename Test>
__global__ void __launch_bounds__(kNmsChunk) nms_kernel(NmsParams<Test> p, int64_t chunk) {
  __shared__ HeldBoxes<Test, kNmsChunk> kept;
  __shared__ HeldBoxes<Test, kNmsPart> own;
  __shared__ bool open[kNmsPart], last;
  const int self = static_cast<int>(threadIdx.x), warp = self / kWarp, lane = self % kWarp;
  const int64_t begin = chunk < 0 ? 0 : p.end[chunk], end = p.end[chunk + 1];
  if (end >= p.limit) {  // enough
    if (blockIdx.x == 0 && self == 0) p.end[chunk + 2] = end;
    return;
  }
  const int n = static_cast<int>(end - begin);
  if (self < n) kept.hold(p, self, p.kept[begin + self]);
  const int64_t behind = (chunk + 1) * kNmsChunk, parts = ceil_div(p.count - behind, kNmsPart);
  const int64_t of_next = math::min(parts, int64_t(kNmsChunk / kNmsPart));
  for (int64_t part = blockIdx.x; part < (n > 0 ? parts : of_next); part += gridDim.x) {
    const int64_t first = behind + part * kNmsPart;
    const int boxes = static_cast<int>(math::min(int64_t(kNmsPart), p.count - first));
    __syncthreads();
    if (self < boxes) {
      open[self] = !p.fallen[first + self];
      own.hold(p, self, first + self);
    }
    __syncthreads();
    for (int box = warp; box < boxes; box += kNmsWarps) {
      bool falls = false;
      for (int i = 0; open[box] && !falls && i < n; i += kWarp) {
        falls = suppressors(p.test, kept, i, n, own, box) != 0;
      }
      if (falls && lane == 0) p.fallen[first + box] = true;
    }
    if (part >= of_next) continue;
    __syncthreads();
    if (self == 0) {
      __threadfence();
      last = atomicAdd(p.tested + chunk + 1, 1) + 1 == of_next;
    }
    __syncthreads();
    if (!last) continue;
    __threadfence();
    settle_chunk(p, chunk + 1, end);
  }
}

// The order of selection: NaN first, ties in input order.
inline Tensor selection_order(const Tensor& scores) {
  const auto type = compute_type(scores.scalar_type());
  const Tensor keys = empty(scores.sizes(), scores.options().dtype(type)).copy_(scores);
  DETOPS_WIDE_SWITCH(type, [&] {
    scalar_t* key = elements(keys);
    // -0 becomes +0, so that the two tie.
    for_each(keys.numel(), [=] __device__(int64_t i) { key[i] += scalar_t(0); });
  });
  return stable_sort(keys, /*descending=*/true).second;
}

// A box whose score is not above the threshold has fallen from the start.
inline void drop_scores(const Tensor& scores, const Tensor& order, double threshold,
                        const Tensor& fallen) {
  const Tensor all = wide(scores);
  const int64_t* box = elements(order);
  bool* falls = elements(fallen);
  DETOPS_WIDE_SWITCH(all.scalar_type(), [&] {
    const scalar_t* score = elements(all);
    for_each(all.numel(), [=] __device__(int64_t i) {
      falls[i] = !(static_cast<double>(score[box[i]]) > threshold);
    });
  });
}

// What a caller asks of the boxes that are kept; labels may be null.
struct Wanted {
  const Tensor& scores;
  const Tensor* idxs;
  std::optional<double> score_threshold;
  int64_t limit;
};

inline int64_t limit_of(const Tensor& boxes, std::optional<int64_t> max_output) {
  return std::min(boxes.size(0), max_output.value_or(boxes.size(0)));
}

// int64 [limit] and []: the indices in `order` of the first `limit` boxes that no kept box before
// them suppresses, -1 where there are none left, and how many there are. Without synchronisation.
template <typename Test>
std::tuple<Tensor, Tensor> select_boxes(const Tensor& order, const Test& test,
                                        const Wanted& wanted) {
  const int64_t limit = wanted.limit, count = order.size(0), chunks = ceil_div(count, kNmsChunk);
  const auto ints = order.options().dtype(kInt);
  const Tensor labels = wanted.idxs ? index_select(wanted.idxs->to(kLong), order) : Tensor();
  const Tensor meets = empty({count, kNmsWords}, ints), tested = zeros({chunks}, ints);
  const Tensor fallen = zeros({count}, order.options().dtype(kBool)), kept = empty_like(order);
  const Tensor end = zeros({chunks + 1}, order.options());
  const Tensor keep = empty({limit}, order.options()).fill_(-1);
  if (wanted.score_threshold) drop_scores(wanted.scores, order, *wanted.score_threshold, fallen);
  const NmsParams<Test> p{test,           elements(order), elements(labels), count,
                          limit,          elements(meets), elements(fallen), elements(tested),
                          elements(kept), elements(end),   elements(keep)};
  launch(meets_kernel<Test>, {blocks_for(count, kNmsPart), kNmsChunk}, p);
  for (int64_t chunk = -1; chunk + 1 < chunks; ++chunk) {
    // The first launch settles the first chunk, and has nothing to test the others against.
    const int64_t boxes =
        chunk < 0 ? std::min<int64_t>(count, kNmsChunk) : count - (chunk + 1) * kNmsChunk;
    launch(nms_kernel<Test>, {blocks_for(boxes, kNmsPart), kNmsChunk}, p, chunk);
  }
  const Tensor most = empty({}, order.options()).fill_(static_cast<double>(limit));
  return {keep, call::op("aten::minimum", "", end.as_strided({}, {}, chunks), most)};
}

// Those indices alone; the one place that waits for the device.
inline Tensor without_padding(const std::tuple<Tensor, Tensor>& selected) {
  const auto& [keep, count] = selected;
  return keep.narrow(0, 0, count.item<int64_t>()).clone();
}

}  // namespace detops::cuda
