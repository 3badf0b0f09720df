// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nms_grid.h"
#include "sort.h"

namespace detops::cpu {

// An index over kept boxes for low thresholds, where boxes of any size suppress each other if they
// meet: an R-tree whose boxes have their slots in advance, and whose nodes bound those of them that
// are kept so far. A node holds the bounds of its children, and the least of their scaled areas, in
// rows: what the filter finds of bounds is never less than what it finds of a box within.
constexpr int64_t kNmsFanOut = 16, kNmsNode = 5 * kNmsFanOut;
constexpr int kNmsTreeLevels = 8;  // 16^8 boxes

template <typename T>
struct NmsTree {
  int levels;
  T* nodes[kNmsTreeLevels];  // level 0 has the boxes, the last level is one node
  const uint32_t* slot;      // [count]: of each candidate, kNoSlot for a box that meets nothing
};

// Owns a tree over the boxes of one segment; memory is kept from one segment to the next.
template <typename T>
class NmsTreeStorage {
 public:
  // A tree with a slot for every candidate from `settled` on and for those kept before; all empty.
  NmsTree<T> build(const NmsSegment<T>& s, int64_t settled) {
    const int64_t count = take_members(s, settled);
    place_members(s, count);
    NmsTree<T> tree{};
    tree.slot = slot_.data();
    int64_t nodes[kNmsTreeLevels], all = 0, below = count;
    do {
      below = (below + kNmsFanOut - 1) / kNmsFanOut;
      nodes[tree.levels++] = below;
      all += below;
    } while (below > 1);
    T* node = nodes_.reserve(all * kNmsNode);
    for (int level = 0; level < tree.levels; ++level) {
      tree.nodes[level] = node;
      for (int64_t i = 0; i < nodes[level]; ++i, node += kNmsNode) {
        // Bounds of nothing: they meet no box, and grow to whatever is added.
        constexpr T kInfinity = std::numeric_limits<T>::infinity();
        std::fill_n(node, 2 * kNmsFanOut, kInfinity);
        std::fill_n(node + 2 * kNmsFanOut, 2 * kNmsFanOut, -kInfinity);
        std::fill_n(node + 4 * kNmsFanOut, kNmsFanOut, kInfinity);
      }
    }
    return tree;
  }

 private:
  // Lists the boxes that need a slot, and counts them by shape.
  int64_t take_members(const NmsSegment<T>& s, int64_t settled) {
    uint32_t* member = member_.reserve(s.count);
    uint32_t* slot = slot_.reserve(s.count);
    std::fill_n(counts_, kShapes, 0);
    int64_t count = 0;
    for (int64_t i = 0; i < s.count; ++i) {
      slot[i] = kNoSlot;
      if (!can_meet(box_at(s, i)) || (i < settled && !s.keep[i])) continue;
      member[count++] = static_cast<uint32_t>(i);
      ++counts_[shape_of(s, i)];
    }
    return count;
  }

  // Neighbours of like shape get neighbouring slots: shapes one after another, large boxes first,
  // each cut along x into slabs of like numbers of boxes, and these sorted by y ("STR: A Simple and
  // Efficient Algorithm for R-Tree Packing", 1997). Ranks, not coordinates, so outliers move
  // nothing.
  void place_members(const NmsSegment<T>& s, int64_t count) {
    int64_t first[kShapes], width[kShapes], slabs = 0;
    for (int shape = kShapes - 1; shape >= 0; --shape) {
      const double leaves = double(counts_[shape]) / kNmsFanOut;
      const auto of_shape = static_cast<int64_t>(std::ceil(std::sqrt(leaves)));
      first[shape] = slabs;
      width[shape] = of_shape == 0 ? 1 : (counts_[shape] + of_shape - 1) / of_shape;
      slabs += of_shape;
    }
    const uint32_t* member = member_.data();
    uint32_t *by_x = by_x_.reserve(count), *by_y = by_y_.reserve(count);
    uint32_t *slab = slab_.reserve(s.count), *place = place_.reserve(count);
    sort_(count, [&](int64_t j) { return ascending_key(s.x1[member[j]], s.x2[member[j]]); }, by_x);
    int64_t rank[kShapes] = {};
    for (int64_t j = 0; j < count; ++j) {
      const uint32_t i = by_x[j] = member[by_x[j]];
      const int shape = shape_of(s, i);
      slab[i] = static_cast<uint32_t>(first[shape] + rank[shape]++ / width[shape]);
    }
    sort_(count, [&](int64_t j) { return ascending_key(s.y1[by_x[j]], s.y2[by_x[j]]); }, by_y);
    sort_(count, [&](int64_t j) { return slab[by_x[by_y[j]]]; }, place);
    for (int64_t k = 0; k < count; ++k) {
      slot_[by_x[by_y[place[k]]]] = static_cast<uint32_t>(k);
    }
  }

  // The longer side, within a factor of 4, and whether it is the width, the height or hardly longer
  // than the other.
  static constexpr int kShapes = 3 * kNmsClasses;
  static int shape_of(const NmsSegment<T>& s, int64_t i) {
    const T w = s.x2[i] - s.x1[i], h = s.y2[i] - s.y1[i];
    return 3 * grid_class(double(std::max(w, h))) + (w > 4 * h) + 2 * (h > 4 * w);
  }

  static uint32_t ascending_key(T low, T high) {
    return descending_key(-static_cast<float>(grid_centre(low, high)));
  }

  int64_t counts_[kShapes];
  ArgSort<uint32_t> sort_;
  Buffer<uint32_t> member_, slot_, slab_, by_x_, by_y_, place_;
  Buffer<T> nodes_;
};

}  // namespace detops::cpu
