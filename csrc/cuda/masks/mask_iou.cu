// SPDX-License-Identifier: MIT
#include "../../math/masks.h"

#include "../nms/nms.cuh"

namespace detops::cuda {
namespace {

constexpr int kSide = 16;        // masks on each side of a block's square of pairs
constexpr int kHeld = 32;        // words that it holds of each mask
constexpr int64_t kPart = 1024;  // words that it looks at

struct PackParams {
  const uint8_t* pixels;  // [N, size]
  const int64_t* order;   // [N], or null
  int64_t count, size, words;
  unsigned* bits;  // [N, words], out
  int* areas;      // [N], out; all 0 at first
};

// A warp packs 32 words of a mask.
__global__ void pack_masks_kernel(PackParams p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t parts = ceil_div(p.words, int64_t(kWarp));
  const int64_t warps = int64_t(gridDim.x) * blockDim.x / kWarp;
  int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  for (; i < p.count * parts; i += warps) {
    const int64_t n = i / parts, first = i % parts * kWarp;
    const uint8_t* mask = p.pixels + (p.order == nullptr ? n : p.order[n]) * p.size;
    unsigned mine = 0;
    int set = 0;
    for (int w = 0; w < kWarp; ++w) {
      const int64_t at = (first + w) * kWarp + lane;
      const unsigned word = __ballot_sync(0xffffffffu, at < p.size && mask[at] != 0);
      if (w == lane) mine = word;
      set += __popc(word);
    }
    if (first + lane < p.words) p.bits[n * p.words + first + lane] = mine;
    if (lane == 0 && set > 0) atomicAdd(p.areas + n, set);
  }
}

struct PackedMasks {
  Tensor bits, areas;  // [N, words], [N]

  const unsigned* words() const {
    return reinterpret_cast<const unsigned*>(bits.const_data_ptr<int>());
  }
};

PackedMasks packed(const char* op, const Tensor& masks, const Tensor& order = {}) {
  const int64_t count = masks.size(0), size = masks.size(1) * masks.size(2);
  narrow(op, size);
  const Tensor rows = masks.contiguous();
  const auto ints = masks.options().dtype(kInt);
  const int64_t words = ceil_div(size, int64_t(kWarp));
  const PackedMasks result{empty({count, words}, ints), zeros({count}, ints)};
  if (count * words == 0) return result;
  const PackParams p{static_cast<const uint8_t*>(rows.const_data_ptr()),
                     order.defined() ? order.const_data_ptr<int64_t>() : nullptr,
                     count,
                     size,
                     words,
                     reinterpret_cast<unsigned*>(result.bits.mutable_data_ptr<int>()),
                     result.areas.mutable_data_ptr<int>()};
  const int64_t warps = count * ceil_div(words, int64_t(kWarp));
  launch(op, pack_masks_kernel, blocks_for(warps * kWarp), p);
  return result;
}

struct SharedParams {
  const unsigned *first, *second;  // [N, words], [M, words]
  int64_t n, m, words;
  int* counts;  // [N, M], out; all 0 at first
};

// A block adds up the pixels that 16 masks share with 16 others in some of their words.
__global__ void __launch_bounds__(kSide* kSide) shared_pixels_kernel(SharedParams p) {
  __shared__ unsigned first[kSide][kHeld + 1], second[kSide][kHeld + 1];
  const int self = static_cast<int>(threadIdx.x), row = self / kSide, column = self % kSide;
  const int64_t high = ceil_div(p.n, int64_t(kSide)), wide = ceil_div(p.m, int64_t(kSide));
  const int64_t squares = high * wide, parts = ceil_div(p.words, kPart);
  for (int64_t work = blockIdx.x; work < squares * parts; work += gridDim.x) {
    const int64_t square = work % squares, begin = work / squares * kPart;
    const int64_t i = square / wide * kSide, j = square % wide * kSide;
    const int64_t end = math::min(begin + kPart, p.words);
    int meet = 0;
    for (int64_t word = begin; word < end; word += kHeld) {
      __syncthreads();
      for (int k = self; k < kSide * kHeld; k += kSide * kSide) {
        const int mask = k / kHeld, w = k % kHeld;
        const bool inside = word + w < end;
        first[mask][w] = inside && i + mask < p.n ? p.first[(i + mask) * p.words + word + w] : 0;
        second[mask][w] = inside && j + mask < p.m ? p.second[(j + mask) * p.words + word + w] : 0;
      }
      __syncthreads();
      for (int w = 0; w < kHeld; ++w) meet += __popc(first[row][w] & second[column][w]);
    }
    if (meet > 0 && i + row < p.n && j + column < p.m) {
      atomicAdd(p.counts + (i + row) * p.m + j + column, meet);
    }
  }
}

__global__ void mask_overlap_kernel(const int* counts, const int* areas1, const int* areas2,
                                    int64_t n, int64_t m, bool of_first, float* out) {
  DETOPS_FOR_EACH(i, n * m) {
    out[i] = math::mask_overlap(counts[i], areas1[i / m], areas2[i % m], of_first);
  }
}

void overlaps(const char* op, const PackedMasks& first, const PackedMasks& second, bool of_first,
              Tensor& output) {
  const int64_t n = first.bits.size(0), m = second.bits.size(0), words = first.bits.size(1);
  const Tensor counts = zeros({n, m}, first.areas.options());
  const SharedParams p{first.words(), second.words(), n, m, words, counts.mutable_data_ptr<int>()};
  const int64_t blocks = ceil_div(n, kSide) * ceil_div(m, kSide) * ceil_div(words, kPart);
  if (blocks > 0) launch(op, shared_pixels_kernel, Launch(blocks_for(blocks, 1), kSide * kSide), p);
  launch(op, mask_overlap_kernel, blocks_for(n * m), counts.const_data_ptr<int>(),
         first.areas.const_data_ptr<int>(), second.areas.const_data_ptr<int>(), n, m, of_first,
         output.mutable_data_ptr<float>());
}

// Of masks in score order, by the matrix of their overlaps.
struct MaskTest {
  struct Item {
    int64_t place;
  };
  const float* overlaps;  // [N, N]
  int64_t count;          // N
  double threshold;

  __device__ Item item(int64_t place) const { return {place}; }
  __device__ bool operator()(const Item& by, const Item& mask) const {
    return static_cast<double>(overlaps[by.place * count + mask.place]) > threshold;
  }
};

}  // namespace

void mask_iou(const Tensor& masks1, const Tensor& masks2, std::string_view mode, Tensor& output) {
  const PackedMasks first = packed("mask_iou", masks1);
  const PackedMasks second = masks1.is_same(masks2) ? first : packed("mask_iou", masks2);
  overlaps("mask_iou", first, second, mode == "iof", output);
}

Tensor mask_nms(const Tensor& masks, const Tensor& scores, double iou_threshold) {
  const int64_t n = masks.size(0);
  if (n == 0) return empty({0}, masks.options().dtype(kLong));
  const Tensor order = selection_order(scores);
  const PackedMasks sorted = packed("mask_nms", masks, order);
  Tensor matrix = empty({n, n}, masks.options().dtype(kFloat));
  overlaps("mask_nms", sorted, sorted, false, matrix);
  const MaskTest test{matrix.const_data_ptr<float>(), n, iou_threshold};
  return without_padding(select_boxes("mask_nms", order, test, {scores, nullptr, std::nullopt, n}));
}

}  // namespace detops::cuda
