// SPDX-License-Identifier: MIT
#include "../../math/masks.h"

#include "../../ops.h"
#include "../common/buffer.h"
#include "../nms/score_order.h"

namespace detops::cpu {

// Masks are compared a tile of 64-bit words at a time, so that those of many masks stay in the
// cache, and tiles without a pixel are left out.
constexpr int64_t kTileWords = 128;
constexpr int64_t kMaskVector = 8;  // words of the widest vector

// Where a tile of a mask is.
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

auto shared_pixels_in_use() {
#ifdef DETOPS_X86_TARGETS
  static const bool counts_bits = __builtin_cpu_supports("avx512vpopcntdq");
  if (counts_bits && isa() == Isa::kAvx512) return vpopcnt::add_shared_pixels;
#endif
  return DETOPS_IN_USE(add_shared_pixels);
}

// Masks as bits, and the number of pixels in each and in each of its tiles.
class PackedMasks {
 public:
  // In the order of the indices, or in that of the tensor where there are none.
  explicit PackedMasks(const Tensor& masks, const uint32_t* order = nullptr)
      : count_(masks.size(0)),
        words_((masks.size(1) * masks.size(2) + 64 * kMaskVector - 1) / (64 * kMaskVector) *
               kMaskVector),
        tiles_((words_ + kTileWords - 1) / kTileWords),
        bits_(count_ * words_),
        of_tiles_(count_ * tiles_),
        areas_(count_) {
    const Tensor rows = masks.contiguous();
    const auto* pixels = static_cast<const uint8_t*>(rows.const_data_ptr());
    const int64_t size = masks.size(1) * masks.size(2);
    const auto pack = DETOPS_IN_USE(pack_mask);
    const int64_t grain = std::max<int64_t>(1, kPixelsPerThread / (size + 1));
    parallel_for(0, count_, grain, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        const int64_t from = order == nullptr ? i : order[i];
        pack(pixels + from * size, size, bits_.data() + i * words_, of_tiles_.data() + i * tiles_);
        areas_[i] = 0;
        for (int64_t t = 0; t < tiles_; ++t) areas_[i] += in_tile(i, t);
      }
    });
  }

  int64_t count() const { return count_; }
  int64_t tiles() const { return tiles_; }
  int64_t area(int64_t i) const { return areas_[i]; }
  int64_t in_tile(int64_t i, int64_t t) const { return of_tiles_[i * tiles_ + t]; }
  int64_t words_in(int64_t t) const { return std::min(kTileWords, words_ - t * kTileWords); }
  MaskTile tile(int64_t i, int64_t t) const {
    return {bits_.data() + i * words_ + t * kTileWords, i};
  }

 private:
  int64_t count_, words_, tiles_;
  Buffer<uint64_t> bits_;
  Buffer<int64_t> of_tiles_, areas_;
};

// Rows begin to end of the matrix of shared pixels.
void shared_pixels(const PackedMasks& first, const PackedMasks& second, int64_t begin, int64_t end,
                   int64_t* counts) {
  const auto add = shared_pixels_in_use();
  std::fill_n(counts, (end - begin) * second.count(), 0);
  Buffer<MaskTile> others(second.count());
  for (int64_t t = 0; t < second.tiles(); ++t) {
    int64_t n = 0;
    for (int64_t j = 0; j < second.count(); ++j) {
      if (second.in_tile(j, t) > 0) others[n++] = second.tile(j, t);
    }
    for (int64_t i = begin; n > 0 && i < end; ++i) {
      if (first.in_tile(i, t) == 0) continue;
      add(first.tile(i, t).words, others.data(), n, first.words_in(t),
          counts + (i - begin) * second.count());
    }
  }
}

// keep[i] for the i-th mask in the order of selection.
void suppress(const PackedMasks& masks, double threshold, uint8_t* keep) {
  const auto add = shared_pixels_in_use();
  Buffer<int64_t> kept(masks.count());
  int64_t n = 0;
  for (int64_t i = 0; i < masks.count(); ++i) {
    const int64_t area = masks.area(i);
    const auto suppresses = [&](int64_t by) {
      const int64_t other = masks.area(by);
      const auto exceeds = [&](int64_t meet) {
        return double(math::mask_overlap(meet, other, area, false)) > threshold;
      };
      // The numbers of pixels alone decide most pairs.
      if (!exceeds(std::min(area, other))) return false;
      int64_t most = 0, meet = 0;
      for (int64_t t = 0; t < masks.tiles(); ++t) {
        most += std::min(masks.in_tile(i, t), masks.in_tile(by, t));
      }
      if (!exceeds(most)) return false;
      for (int64_t t = 0; t < masks.tiles(); ++t) {
        if (masks.in_tile(i, t) == 0 || masks.in_tile(by, t) == 0) continue;
        const MaskTile tile{masks.tile(by, t).words, 0};
        add(masks.tile(i, t).words, &tile, 1, masks.words_in(t), &meet);
      }
      return exceeds(meet);
    };
    keep[i] = std::none_of(kept.data(), kept.data() + n, suppresses);
    if (keep[i]) kept[n++] = i;
  }
}

}  // namespace

void mask_iou(const Tensor& masks1, const Tensor& masks2, std::string_view mode, Tensor& output) {
  const bool of_first = mode == "iof";
  const PackedMasks first(masks1);
  std::optional<PackedMasks> other;
  if (!masks1.is_same(masks2)) other.emplace(masks2);
  const PackedMasks& second = other ? *other : first;
  const int64_t m = second.count();
  float* out = output.mutable_data_ptr<float>();
  const int64_t pixels = masks1.size(1) * masks1.size(2);
  const int64_t grain = std::max<int64_t>(1, 16 * kPixelsPerThread / (m * pixels + 1));
  parallel_for(0, first.count(), grain, [&](int64_t begin, int64_t end) {
    Buffer<int64_t> counts((end - begin) * m);
    shared_pixels(first, second, begin, end, counts.data());
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < m; ++j) {
        out[i * m + j] = math::mask_overlap(counts[(i - begin) * m + j], first.area(i),
                                            second.area(j), of_first);
      }
    }
  });
}

Tensor mask_nms(const Tensor& masks, const Tensor& scores, double iou_threshold) {
  const int64_t n = masks.size(0);
  const auto indices = masks.options().dtype(kLong);
  if (n == 0) return empty({0}, indices);
  check_count("mask_nms", n);
  const Selection selection(wide(scores), nullptr);
  const PackedMasks sorted(masks, selection.order());
  Buffer<uint8_t> keep(n);
  suppress(sorted, iou_threshold, keep.data());
  return selection.selected(keep.data(), indices, n);
}

}  // namespace detops::cpu
