// SPDX-License-Identifier: MIT
#include "../../math/masks.h"

#include <numeric>

#include "../common/host.h"
#include "../common/score_order.h"

namespace detops::cpu {

// Masks are compared a tile of 64-bit words at a time, so that the tiles of many masks stay in
// cache. Tiles without a set pixel are skipped.
constexpr int64_t kTileWords = 128;
constexpr int64_t kMaskVector = 8;  // words in the widest vector

// A tile of a mask.
struct MaskTile {
  const uint64_t* words;
  int64_t index;  // of the mask
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../masks/mask_iou.inl"
#include "../simd/variants.h"

#ifdef DETOPS_X86_TARGETS
DETOPS_TARGET_BEGIN(DETOPS_VPOPCNT)
namespace detops::cpu::vpopcnt {
#define DETOPS_VECTOR_BYTES 64
#define DETOPS_COUNTS_BITS
#include "../simd/simd.inl"
//
#include "mask_iou.inl"
#undef DETOPS_COUNTS_BITS
#undef DETOPS_VECTOR_BYTES
#undef DETOPS_INLINE
}  // namespace detops::cpu::vpopcnt
DETOPS_TARGET_END
#endif

namespace detops::cpu {
namespace {

constexpr int64_t kPixelsPerThread = 1 << 18;
constexpr int64_t kCountsPerBlock = 1 << 18;  // pairs whose shared pixels a thread counts at a time

auto shared_pixels_in_use() {
#ifdef DETOPS_X86_TARGETS
  static const bool counts_bits = __builtin_cpu_supports("avx512vpopcntdq");
  if (counts_bits && isa() == Isa::kAvx512) return vpopcnt::add_shared_pixels;
#endif
  return DETOPS_IN_USE(add_shared_pixels);
}

// Masks packed into bits, with the number of set pixels in each mask and in each of its tiles.
struct PackedMasks {
  const int64_t count, size;  // number of masks, and of pixels in each
  const int64_t words = divide_up(size, 64 * kMaskVector) * kMaskVector;
  const int64_t tiles = divide_up(words, kTileWords);
  Buffer<uint64_t> bits{size_t(count * words)};
  Buffer<int64_t> tile_counts{size_t(count * tiles)}, areas{size_t(count)};

  // Packs masks in the given order, or in the order of the tensor if `order` is null.
  explicit PackedMasks(const Tensor& masks, const uint32_t* order = nullptr)
      : count(masks.size(0)), size(masks.size(1) * masks.size(2)) {
    const Tensor rows = masks.contiguous();
    const auto* pixels = static_cast<const uint8_t*>(rows.const_data_ptr());
    const auto pack = DETOPS_IN_USE(pack_mask);
    const int64_t grain = grain_for(kPixelsPerThread, size + 1);
    parallel_each(count, grain, [&](int64_t i) {
      const int64_t from = order == nullptr ? i : order[i];
      int64_t* counts = tile_counts.data() + i * tiles;
      pack(pixels + from * size, size, bits.data() + i * words, counts);
      areas[i] = std::accumulate(counts, counts + tiles, int64_t(0));
    });
  }

  int64_t tile_count(int64_t i, int64_t t) const { return tile_counts[i * tiles + t]; }
  int64_t tile_words(int64_t t) const { return std::min(kTileWords, words - t * kTileWords); }
  MaskTile tile(int64_t i, int64_t t) const {
    return {bits.data() + i * words + t * kTileWords, i};
  }
};

}  // namespace

void mask_iou(const Tensor& masks1, const Tensor& masks2, std::string_view mode, Tensor& output) {
  const bool of_first = mode == "iof";
  const PackedMasks first(masks1);
  std::optional<PackedMasks> other;
  const PackedMasks& second = masks1.is_same(masks2) ? first : other.emplace(masks2);
  const int64_t m = second.count;
  float* out = output.mutable_data_ptr<float>();
  const auto add = shared_pixels_in_use();
  const int64_t grain = grain_for(16 * kPixelsPerThread, m * first.size + 1);
  const int64_t rows_per_block = grain_for(kCountsPerBlock, m + 1);
  parallel_for(first.count, grain, [&](int64_t begin, int64_t end) {
    Buffer<int64_t> counts(std::min(rows_per_block, end - begin) * m);  // of shared pixels
    Buffer<MaskTile> others(m);
    for (int64_t from = begin, to; from < end; from = to) {
      to = std::min(from + rows_per_block, end);
      std::fill_n(counts.data(), (to - from) * m, 0);
      for (int64_t t = 0; t < second.tiles; ++t) {
        int64_t n = 0;
        for (int64_t j = 0; j < m; ++j) {
          if (second.tile_count(j, t) > 0) others[n++] = second.tile(j, t);
        }
        for (int64_t i = from; n > 0 && i < to; ++i) {
          if (first.tile_count(i, t) == 0) continue;
          add(first.tile(i, t).words, others.data(), n, first.tile_words(t),
              counts.data() + (i - from) * m);
        }
      }
      for (int64_t i = from; i < to; ++i) {
        for (int64_t j = 0; j < m; ++j) {
          out[i * m + j] = math::mask_overlap(counts[(i - from) * m + j], first.areas[i],
                                              second.areas[j], of_first);
        }
      }
    }
  });
}

Tensor mask_nms(const Tensor& masks, const Tensor& scores, double iou_threshold) {
  const int64_t n = masks.size(0);
  const auto indices = masks.options().dtype(kLong);
  if (n == 0) return empty({0}, indices);
  const Selection selection(wide(scores), nullptr);
  const PackedMasks sorted(masks, selection.order());
  const auto add = shared_pixels_in_use();
  const auto suppresses = [&](int64_t suppressor, int64_t i) {
    const auto exceeds = [&](int64_t inter) {
      const float iou = math::mask_overlap(inter, sorted.areas[suppressor], sorted.areas[i], false);
      return double(iou) > iou_threshold;
    };
    // The areas alone decide most pairs.
    if (!exceeds(std::min(sorted.areas[i], sorted.areas[suppressor]))) return false;
    int64_t max_inter = 0, inter = 0;
    for (int64_t t = 0; t < sorted.tiles; ++t) {
      max_inter += std::min(sorted.tile_count(i, t), sorted.tile_count(suppressor, t));
    }
    if (!exceeds(max_inter)) return false;
    for (int64_t t = 0; t < sorted.tiles; ++t) {
      if (sorted.tile_count(i, t) == 0 || sorted.tile_count(suppressor, t) == 0) continue;
      const MaskTile tile{sorted.tile(suppressor, t).words, 0};
      add(sorted.tile(i, t).words, &tile, 1, sorted.tile_words(t), &inter);
    }
    return exceeds(inter);
  };
  Buffer<uint8_t> keep(n);
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < n; ++i) {
    keep[i] = std::none_of(kept.begin(), kept.end(), [&](int64_t k) { return suppresses(k, i); });
    if (keep[i]) kept.push_back(i);
  }
  return selection.selected(keep.data(), indices, n);
}

}  // namespace detops::cpu
