// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>
#include <utility>

#include "../common/host.h"
#include "nms_index.h"

namespace detops::cpu {

// The kernels of nms.inl that settle strips.
template <typename T>
struct StripKernels {
  void (*settle)(const NmsSegment<T>&, const NmsGrid<T>&, NmsOpen<T>&);
  bool (*suppressed)(const NmsSegment<T>&, int64_t, const NmsGrid<T>&, const NmsOpen<T>&, int64_t);
};

// NMS of one class on several threads. The image is cut into strips. Each thread sorts the boxes of
// one strip and marks each as kept, suppressed or open. A box is open if it may depend on a box of
// another strip or on an open box. One thread then settles the open boxes, a few along the cuts, in
// order. The result equals that of one thread, whatever the cuts.
template <typename T, typename Key>
class NmsStrips {
 public:
  explicit NmsStrips(const StripKernels<T>& kernels) : kernels_(kernels) {}

  // box_of(i) points to the coordinates of box i. Boxes are selected by ascending key_of(i), and
  // ties by i. Returns false, with nothing settled, if too many boxes would be open.
  template <typename BoxOf, typename KeyOf>
  bool settle(int64_t n, double threshold, const BoxOf& box_of, const KeyOf& key_of) {
    if (!(threshold >= 0 && threshold < 1)) return false;
    if (!choose_cuts(n, (1 - threshold) / (2 * threshold), box_of)) return false;
    strips_ = std::vector<Strip>(cuts_.size() + 1);
    for_each_strip([&](int64_t k) {
      collect_boxes(n, k, threshold, box_of, key_of);
      settle_strip(k);
    });
    settle_open();
    return true;
  }

  // Sets keep[i] of every box.
  void write_keep(uint8_t* keep) {
    for_each_strip([&](int64_t k) {
      const Strip& strip = strips_[k];
      for (int64_t j = 0; j < strip.segment.count; ++j) keep[index(strip.rank[j])] = strip.keep[j];
    });
  }

  // Returns the first `limit` kept boxes in the order of selection.
  Tensor selected(const Options& options, int64_t limit) {
    for_each_strip([&](int64_t k) {
      Strip& strip = strips_[k];
      for (int64_t j = 0; j < strip.segment.count; ++j) {
        strip.rank[strip.kept] = strip.rank[j];
        strip.kept += strip.keep[j];
      }
    });
    const int64_t count = static_cast<int64_t>(strips_.size());
    for (int64_t stride = 1; stride < count; stride *= 2) {
      for_each_strip([&](int64_t k) {
        if (k % (2 * stride) == 0 && k + stride < count) merge(strips_[k], strips_[k + stride]);
      });
    }
    Tensor output = empty({std::min(strips_[0].kept, limit)}, options);
    int64_t* out = output.mutable_data_ptr<int64_t>();
    for (int64_t j = 0; j < output.size(0); ++j) out[j] = index(strips_[0].rank[j]);
    return output;
  }

 private:
  // A position in the order of selection: the key, then the index.
  __extension__ using Uint128 = unsigned __int128;
  using Rank = std::conditional_t<sizeof(Key) == 4, uint64_t, Uint128>;
  // Replaces the scaled area of a suppressed box, so that it suppresses no other.
  static constexpr T kSuppressed = std::numeric_limits<T>::infinity();
  static uint32_t index(Rank rank) { return static_cast<uint32_t>(rank); }

  // Each thread allocates its own strip: cache lines last written by another core are slow.
  struct Strip {
    Buffer<Rank> rank;  // of its boxes, ascending
    Buffer<T> coordinates;
    Buffer<uint8_t> keep;
    Buffer<uint32_t> open_memory;
    NmsGridStorage<T> storage;
    NmsSegment<T> segment;
    NmsGrid<T> grid;
    NmsOpen<T> open;
    int64_t kept = 0;
  };

  template <typename Visit>
  void for_each_strip(const Visit& visit) {
    parallel_each(static_cast<int64_t>(strips_.size()), 1, visit);
  }

  // NaN belongs to strip 0: such a box meets no other.
  int64_t strip_of(T position) const {
    int64_t strip = 0;
    for (const T cut : cuts_) strip += position >= cut;
    return strip;
  }

  // Chooses cuts at quantiles of a sample, on the axis where fewer boxes reach across a cut.
  template <typename BoxOf>
  bool choose_cuts(int64_t n, double reach, const BoxOf& box_of) {
    constexpr int64_t kSamples = 1024;
    constexpr double kMaxOpen = 0.15;
    const int64_t strips = std::min<int64_t>(get_num_threads(), 32);
    double best_open = 2;
    std::vector<T> best_cuts;
    for (const int axis : {0, 1}) {
      std::vector<T> centres, reaches;
      for (int64_t k = 0; k < kSamples; ++k) {
        const T* box = box_of(k * n / kSamples);
        const T low = box[axis], high = box[axis + 2];
        if (!(high > low && high - low < std::numeric_limits<T>::infinity())) continue;
        centres.push_back(grid_centre(low, high));
        reaches.push_back(grid_reach(reach, low, high));
      }
      const auto valid = static_cast<int64_t>(centres.size());
      if (valid < 8 * strips) return false;
      std::vector<T> sorted = centres;
      std::sort(sorted.begin(), sorted.end());
      cuts_.clear();
      for (int64_t k = 1; k < strips; ++k) cuts_.push_back(sorted[k * valid / strips]);
      int64_t crossing = 0;
      for (int64_t k = 0; k < valid; ++k) {
        crossing += strip_of(centres[k] - reaches[k]) != strip_of(centres[k] + reaches[k]);
      }
      const double open = double(crossing) / double(valid);
      if (open >= best_open) continue;
      best_open = open;
      along_y_ = axis == 1;
      best_cuts = cuts_;
    }
    cuts_ = std::move(best_cuts);
    return best_open <= kMaxOpen;
  }

  // Collects the boxes of strip k in the order of selection. Each box belongs to exactly one strip.
  template <typename BoxOf, typename KeyOf>
  void collect_boxes(int64_t total, int64_t k, double threshold, const BoxOf& box_of,
                     const KeyOf& key_of) {
    const bool first = k == 0, last = k == static_cast<int64_t>(cuts_.size());
    const T from = first ? T(0) : cuts_[k - 1], to = last ? T(0) : cuts_[k];
    const int low = along_y_, high = low + 2;
    Buffer<uint32_t> indices(total), order;
    int64_t n = 0;
    for (int64_t i = 0; i < total; ++i) {
      const T* box = box_of(i);
      const T centre = grid_centre(box[low], box[high]);
      indices[n] = static_cast<uint32_t>(i);
      n += (first | (centre >= from)) & (last | !(centre >= to));
    }
    ArgSort<Key>()(n, [&](int64_t j) { return key_of(indices[j]); }, order.reserve(n));

    Strip& strip = strips_[k];
    Rank* rank = strip.rank.reserve(n + 1);
    T* x1 = strip.coordinates.reserve(4 * n);
    T *y1 = x1 + n, *x2 = y1 + n, *y2 = x2 + n;
    for (int64_t j = 0; j < n; ++j) {
      const uint32_t i = indices[order[j]];
      const T* box = box_of(i);
      rank[j] = Rank(key_of(i)) << 32 | i;
      x1[j] = box[0], y1[j] = box[1], x2[j] = box[2], y2[j] = box[3];
    }
    strip.segment = {x1, y1, x2, y2, n, threshold, n, strip.keep.reserve(n)};
  }

  void settle_strip(int64_t k) {
    Strip& strip = strips_[k];
    const int64_t n = strip.segment.count;
    const T infinity = std::numeric_limits<T>::infinity();
    const T low = k == 0 ? -infinity : cuts_[k - 1];
    const T high = k == static_cast<int64_t>(cuts_.size()) ? infinity : cuts_[k];
    uint32_t* memory = strip.open_memory.reserve(4 * n);
    strip.grid = strip.storage.build(strip.segment, 0);
    strip.open = {along_y_, low, high, memory, memory + n, memory + 2 * n, memory + 3 * n, 0};
    kernels_.settle(strip.segment, strip.grid, strip.open);
  }

  // Settles the open boxes in order. Suppressed ones are disabled in their grids, so every earlier
  // box that is still active there is kept.
  void settle_open() {
    struct Item {
      Rank rank;
      uint32_t strip, entry;
    };
    const auto by_rank = [](const Item& a, const Item& b) { return a.rank < b.rank; };
    std::vector<Item> items;
    for (size_t k = 0; k < strips_.size(); ++k) {
      const auto middle = static_cast<std::ptrdiff_t>(items.size());
      for (int64_t e = 0; e < strips_[k].open.count; ++e) {
        const Rank rank = strips_[k].rank[strips_[k].open.box[e]];
        items.push_back({rank, static_cast<uint32_t>(k), static_cast<uint32_t>(e)});
      }
      std::inplace_merge(items.begin(), items.begin() + middle, items.end(), by_rank);
    }
    for (const Item& item : items) {
      Strip& strip = strips_[item.strip];
      const int64_t i = strip.open.box[item.entry];
      const uint32_t suppressor = strip.open.suppressor[item.entry];
      bool kept = suppressor == kNoSlot || strip.grid.boxes.scaled[suppressor] == kSuppressed;
      const T low = along_y_ ? strip.segment.y1[i] : strip.segment.x1[i];
      const T high = along_y_ ? strip.segment.y2[i] : strip.segment.x2[i];
      const T reach = grid_reach(strip.grid.reach, low, high);
      const int64_t last = strip_of(grid_centre(low, high) + reach);
      for (int64_t k = strip_of(grid_centre(low, high) - reach); k <= last && kept; ++k) {
        const Strip& other = strips_[k];
        if (k == item.strip && suppressor == kNoSlot) continue;
        const Rank* ranks = other.rank.data();
        const int64_t limit =
            std::lower_bound(ranks, ranks + other.segment.count, item.rank) - ranks;
        kept = !kernels_.suppressed(strip.segment, i, other.grid, other.open, limit);
      }
      strip.keep[i] = kept;
      if (!kept) strip.grid.boxes.scaled[strip.open.slot[item.entry]] = kSuppressed;
    }
  }

  // Merges the kept boxes of `b` into those of `a`. Branchless: branches would be unpredictable.
  static void merge(Strip& a, Strip& b) {
    constexpr Rank kEnd = ~Rank(0);
    Buffer<Rank> merged(a.kept + b.kept + 1);
    a.rank[a.kept] = b.rank[b.kept] = kEnd;
    const Rank *x = a.rank.data(), *y = b.rank.data();
    for (int64_t j = 0; j < a.kept + b.kept; ++j) {
      const bool second = *y < *x;
      merged[j] = second ? *y : *x;
      x += !second;
      y += second;
    }
    std::swap(a.rank, merged);
    a.kept += b.kept;
  }

  const StripKernels<T> kernels_;
  bool along_y_ = false;
  std::vector<T> cuts_;
  std::vector<Strip> strips_;
};

}  // namespace detops::cpu
