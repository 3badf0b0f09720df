// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "kernels.h"
#include "nms_grid.h"

namespace detops::cpu {

// NMS of one class by several threads. The picture is cut into strips, and each thread settles one
// of them in order, with three answers: kept, suppressed, or open, for a box that may depend on a
// box of another strip or on an open one. The open ones, a few along the cuts, are then settled in
// order by one thread. The result is that of one thread, whatever the cuts.
template <typename T>
class NmsStrips {
 public:
  // Settles the candidates from `settled` on. False, with nothing done, where cuts would leave too
  // much open.
  bool settle(const NmsSegment<T>& s, int64_t settled) {
    if (!choose_cuts(s)) return false;
    const int64_t count = static_cast<int64_t>(cuts_.size()) + 1;
    share_out(s, count);
    std::vector<Strip> strips(count);
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) work_on(s, settled, k, strips[k]);
    });
    settle_open(strips);
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const Strip& strip = strips[k];
        for (int64_t i = 0; i < strip.segment.count; ++i) {
          s.keep[strip.ranks[i]] = strip.keep[i];
        }
      }
    });
    return true;
  }

 private:
  struct Strip {
    const uint32_t* ranks;  // of its boxes in the order of selection, ascending
    Buffer<T> coordinates;
    Buffer<uint8_t> keep, open_met;
    Buffer<uint32_t> slot_rank, open_index, open_slot;
    NmsGridStorage<T> storage;
    NmsSegment<T> segment;
    NmsGrid<T> grid;
    NmsOpen<T> open;
  };

  T centre(const NmsSegment<T>& s, int64_t i) const {
    return along_y_ ? grid_centre(s.y1[i], s.y2[i]) : grid_centre(s.x1[i], s.x2[i]);
  }

  // NaN, which meets nothing, may go anywhere.
  int64_t strip_of(T at) const {
    int64_t strip = 0;
    for (const T cut : cuts_) strip += at >= cut;
    return strip;
  }

  // Cuts at quantiles of a sample, across the axis where fewer boxes reach over a cut.
  bool choose_cuts(const NmsSegment<T>& s) {
    constexpr int64_t kSamples = 512;
    constexpr double kMostOpen = 0.15;
    const int64_t strips = std::min<int64_t>(at::get_num_threads(), 32);
    const double reach = (1 - s.threshold) / (2 * s.threshold);
    double least = 2;
    std::vector<T> cuts[2];
    for (const bool along_y : {false, true}) {
      along_y_ = along_y;
      std::vector<T> centres, reaches;
      for (int64_t k = 0; k < kSamples; ++k) {
        const int64_t i = k * s.count / kSamples;
        const T low = along_y ? s.y1[i] : s.x1[i], high = along_y ? s.y2[i] : s.x2[i];
        if (!(high > low && high - low < std::numeric_limits<T>::infinity())) continue;
        centres.push_back(grid_centre(low, high));
        reaches.push_back(grid_reach(reach, low, high, high - low));
      }
      if (static_cast<int64_t>(centres.size()) < 8 * strips) return false;
      std::vector<T> sorted = centres;
      std::sort(sorted.begin(), sorted.end());
      cuts_.clear();
      for (int64_t k = 1; k < strips; ++k) cuts_.push_back(sorted[k * sorted.size() / strips]);
      double crossing = 0;
      for (size_t k = 0; k < centres.size(); ++k) {
        crossing += strip_of(centres[k] - reaches[k]) != strip_of(centres[k] + reaches[k]);
      }
      cuts[along_y] = cuts_;
      if (crossing / double(centres.size()) < least) {
        least = crossing / double(centres.size());
        chosen_ = along_y;
      }
    }
    along_y_ = chosen_;
    cuts_ = cuts[chosen_];
    return least <= kMostOpen;
  }

  // ranks_ becomes the boxes of strip 0, then those of strip 1, and so on, each in order.
  void share_out(const NmsSegment<T>& s, int64_t strips) {
    strip_.reserve(s.count);
    ranks_.reserve(s.count);
    const int64_t chunks = at::get_num_threads();
    std::vector<std::vector<int64_t>> place(chunks);
    const auto each_chunk = [&](auto&& visit) {
      at::parallel_for(0, chunks, 1, [&](int64_t k, int64_t end) {
        for (; k < end; ++k) visit(k, s.count * k / chunks, s.count * (k + 1) / chunks);
      });
    };
    each_chunk([&](int64_t k, int64_t i, int64_t end) {
      std::vector<int64_t> count(strips, 0);  // of its own: counters next to each other are slow
      for (; i < end; ++i) {
        strip_[i] = static_cast<uint8_t>(strip_of(centre(s, i)));
        ++count[strip_[i]];
      }
      place[k] = std::move(count);
    });
    begin_.assign(1, 0);
    int64_t total = 0;
    for (int64_t strip = 0; strip < strips; ++strip) {
      for (int64_t k = 0; k < chunks; ++k) {
        const int64_t count = place[k][strip];
        place[k][strip] = total;
        total += count;
      }
      begin_.push_back(total);
    }
    each_chunk([&](int64_t k, int64_t i, int64_t end) {
      std::vector<int64_t> at = place[k];
      for (; i < end; ++i) ranks_[at[strip_[i]]++] = static_cast<uint32_t>(i);
    });
  }

  void work_on(const NmsSegment<T>& s, int64_t settled, int64_t k, Strip& strip) {
    const int64_t n = begin_[k + 1] - begin_[k];
    strip.ranks = ranks_.data() + begin_[k];
    T* x1 = strip.coordinates.reserve(4 * n);
    T *y1 = x1 + n, *x2 = y1 + n, *y2 = x2 + n;
    uint8_t* keep = strip.keep.reserve(n);
    int64_t known = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t rank = strip.ranks[i];
      x1[i] = s.x1[rank], y1[i] = s.y1[rank], x2[i] = s.x2[rank], y2[i] = s.y2[rank];
      keep[i] = s.keep[rank];
      known += rank < settled;
    }
    strip.segment = {x1, y1, x2, y2, n, s.threshold, keep};
    strip.grid = strip.storage.build(strip.segment, known);
    const T infinity = std::numeric_limits<T>::infinity();
    strip.open = {strip.ranks,
                  along_y_,
                  k == 0 ? -infinity : cuts_[k - 1],
                  k == static_cast<int64_t>(cuts_.size()) ? infinity : cuts_[k],
                  strip.slot_rank.reserve(n),
                  strip.open_index.reserve(n),
                  strip.open_slot.reserve(n),
                  strip.open_met.reserve(n),
                  0};
    kernels().nms(x1).strip(strip.segment, strip.grid, known, strip.open);
  }

  // An open box falls to any box before it that is in a grid by now: what fell is taken out.
  void settle_open(std::vector<Strip>& strips) {
    struct Item {
      uint32_t rank, strip, entry;
    };
    std::vector<Item> items;
    for (size_t k = 0; k < strips.size(); ++k) {
      const auto middle = static_cast<std::ptrdiff_t>(items.size());
      for (int64_t e = 0; e < strips[k].open.count; ++e) {
        items.push_back({strips[k].ranks[strips[k].open.index[e]], static_cast<uint32_t>(k),
                         static_cast<uint32_t>(e)});
      }
      std::inplace_merge(items.begin(), items.begin() + middle, items.end(),
                         [](const Item& a, const Item& b) { return a.rank < b.rank; });
    }
    for (const Item& item : items) {
      Strip& own = strips[item.strip];
      const int64_t i = own.open.index[item.entry];
      const auto& kernel = kernels().nms(own.segment.x1);
      const T low = along_y_ ? own.segment.y1[i] : own.segment.x1[i];
      const T high = along_y_ ? own.segment.y2[i] : own.segment.x2[i];
      const T reach = grid_reach(own.grid.reach, low, high, high - low);
      const int64_t last = strip_of(grid_centre(low, high) + reach);
      bool kept = true;
      for (int64_t k = strip_of(grid_centre(low, high) - reach); k <= last && kept; ++k) {
        // Of its own strip only open boxes can be left that suppress it.
        if (k == item.strip && !own.open.met[item.entry]) continue;
        kept = !kernel.suppressed(own.segment, i, strips[k].grid, strips[k].open, item.rank);
      }
      own.keep[i] = kept;
      if (!kept) {
        own.grid.boxes.scaled[own.open.slot[item.entry]] = std::numeric_limits<T>::infinity();
      }
    }
  }

  bool along_y_ = false, chosen_ = false;
  std::vector<T> cuts_;
  std::vector<int64_t> begin_;
  Buffer<uint8_t> strip_;
  Buffer<uint32_t> ranks_;
};

}  // namespace detops::cpu
