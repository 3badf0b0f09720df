// SPDX-License-Identifier: MIT
#include "../../math/masks.h"

#include "../common/nms.cuh"

namespace detops::cuda {
namespace {

constexpr int kTile = 16;              // masks per side of a block's square of pairs
constexpr int kStagedWords = 32;       // words per mask in shared memory
constexpr int64_t kBlockWords = 1024;  // words per mask that a block handles

// A warp packs 32 words of a mask. `areas` must be initialised to 0.
__global__ void pack_masks_kernel(const uint8_t* pixels, int64_t count, int64_t size, int64_t words,
                                  int* bits, int* areas) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t parts = ceil_div(words, kWarp);
  const int64_t warps = int64_t(gridDim.x) * blockDim.x / kWarp;
  int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  for (; i < count * parts; i += warps) {
    const int64_t n = i / parts, first = i % parts * kWarp;
    const uint8_t* mask = pixels + n * size;
    unsigned lane_word = 0;
    int set_pixels = 0;
    for (int w = 0; w < kWarp; ++w) {
      const int64_t at = (first + w) * kWarp + lane;
      const unsigned word = __ballot_sync(0xffffffffu, at < size && mask[at] != 0);
      if (w == lane) lane_word = word;
      set_pixels += __popc(word);
    }
    if (first + lane < words) bits[n * words + first + lane] = static_cast<int>(lane_word);
    if (lane == 0 && set_pixels > 0) atomicAdd(areas + n, set_pixels);
  }
}

struct PackedMasks {
  Tensor bits, areas;  // int32 [N, words], [N]
};

PackedMasks pack_masks(const Tensor& masks) {
  const int64_t count = masks.size(0), size = masks.size(1) * masks.size(2);
  narrow(size);
  const Tensor rows = masks.contiguous();
  const auto ints = masks.options().dtype(kInt);
  const int64_t words = ceil_div(size, kWarp);
  const PackedMasks result{empty({count, words}, ints), zeros({count}, ints)};
  launch(pack_masks_kernel, blocks_for(count * ceil_div(words, kWarp) * kWarp),
         static_cast<const uint8_t*>(rows.const_data_ptr()), count, size, words, result.bits,
         result.areas);
  return result;
}

// A block counts the common pixels of each pair of 16 masks with 16 others, in kBlockWords of their
// words. `counts`, [N, M], must be initialised to 0.
__global__ void __launch_bounds__(kTile* kTile)
    intersection_kernel(const int* bits1, const int* bits2, int64_t n, int64_t m, int64_t words,
                        int* counts) {
  __shared__ unsigned first[kTile][kStagedWords + 1], second[kTile][kStagedWords + 1];
  const int self = static_cast<int>(threadIdx.x), row = self / kTile, column = self % kTile;
  const int64_t column_tiles = ceil_div(m, kTile), tiles = ceil_div(n, kTile) * column_tiles;
  for (int64_t work = blockIdx.x; work < tiles * ceil_div(words, kBlockWords); work += gridDim.x) {
    const int64_t tile = work % tiles, begin = work / tiles * kBlockWords;
    const int64_t i = tile / column_tiles * kTile, j = tile % column_tiles * kTile;
    const int64_t end = math::min(begin + kBlockWords, words);
    int intersection = 0;
    for (int64_t word = begin; word < end; word += kStagedWords) {
      __syncthreads();
      for (int k = self; k < kTile * kStagedWords; k += kTile * kTile) {
        const int mask = k / kStagedWords, w = k % kStagedWords;
        const bool inside = word + w < end;
        first[mask][w] = inside && i + mask < n ? bits1[(i + mask) * words + word + w] : 0;
        second[mask][w] = inside && j + mask < m ? bits2[(j + mask) * words + word + w] : 0;
      }
      __syncthreads();
      for (int w = 0; w < kStagedWords; ++w)
        intersection += __popc(first[row][w] & second[column][w]);
    }
    if (intersection > 0 && i + row < n && j + column < m) {
      atomicAdd(counts + (i + row) * m + j + column, intersection);
    }
  }
}

void overlaps(const PackedMasks& first, const PackedMasks& second, bool iof, const Tensor& output) {
  const int64_t n = first.bits.size(0), m = second.bits.size(0), words = first.bits.size(1);
  const Tensor counts = zeros({n, m}, first.areas.options());
  const int64_t blocks = ceil_div(n, kTile) * ceil_div(m, kTile) * ceil_div(words, kBlockWords);
  launch(intersection_kernel, {blocks_for(blocks, 1), kTile * kTile}, first.bits, second.bits, n, m,
         words, counts);
  const int *count = elements(counts), *area1 = elements(first.areas),
            *area2 = elements(second.areas);
  float* out = elements(output);
  for_each(n * m, [=] __device__(int64_t i) {
    out[i] = math::mask_overlap(count[i], area1[i / m], area2[i % m], iof);
  });
}

// NMS test of masks. Items are mask indices, and overlaps come from a matrix.
struct MaskTest {
  using Item = int;
  const float* overlaps;  // [N, N]
  int64_t count;          // N
  double threshold;

  __device__ bool operator()(int suppressor, int mask) const {
    return static_cast<double>(overlaps[suppressor * count + mask]) > threshold;
  }
};

}  // namespace

void mask_iou(const Tensor& masks1, const Tensor& masks2, std::string_view mode, Tensor& output) {
  const PackedMasks first = pack_masks(masks1);
  const PackedMasks second = masks1.is_same(masks2) ? first : pack_masks(masks2);
  overlaps(first, second, mode == "iof", output);
}

Tensor mask_nms(const Tensor& masks, const Tensor& scores, double iou_threshold) {
  const int64_t n = masks.size(0);
  if (n == 0) return empty({0}, masks.options().dtype(kLong));
  const PackedMasks all = pack_masks(masks);
  const Tensor matrix = empty({n, n}, masks.options().dtype(kFloat));
  overlaps(all, all, false, matrix);
  const MaskTest test{elements(matrix), n, iou_threshold};
  const auto index = [] __device__(int mask) { return mask; };
  return without_padding(select_boxes(test, index, {scores, nullptr, {}, n}));
}

}  // namespace detops::cuda
