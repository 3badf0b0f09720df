// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../simd/bounds.inl"

// Tests IoU > t with a filter before the division: I > t U is equivalent to
// I > t / (1 + t) (area_a + area_b). With areas scaled by that factor in advance, rounded slightly
// down, the filter costs one addition and one comparison. Values so small that rounding moves them
// by more than that slack count as 0.
template <typename T>
struct SuppressionTest {
  double threshold;
  T scale, min_area;  // areas below `min_area` count as 0
};

template <typename T>
DETOPS_INLINE SuppressionTest<T> suppression_test(double threshold) {
  const double scale = threshold / (1 + threshold) * (1 - 1e-6);
  constexpr double kTiny = 1e-30;
  const bool none = scale < kTiny;
  return {threshold, none ? T(0) : static_cast<T>(scale),
          none ? T(0) : static_cast<T>(kTiny / scale)};
}

template <typename T>
struct Candidate {
  math::Box<T> box;
  T area, scaled;
  bool can_overlap;  // if false, the box is kept and never compared with others
};

template <typename T>
DETOPS_INLINE Candidate<T> candidate(const NmsSegment<T>& s, int64_t i,
                                     const SuppressionTest<T>& test) {
  const math::Box<T> box = box_at(s, i);
  const T area = math::area(box);
  return {box, area, area < test.min_area ? T(0) : area * test.scale, can_overlap(box)};
}

// Like scan_bounds, but calls hit(k) only for boxes that suppress the candidate.
template <int kVectors, typename T, typename Hit>
DETOPS_INLINE bool scan(const NmsBoxes<T>& list, int64_t begin, int64_t end, const Candidate<T>& c,
                        const SuppressionTest<T>& test, Hit&& hit) {
  const math::Box<T> box = c.box;  // copies: variables captured by reference stay in memory
  const T area = c.area;
  return scan_bounds<kVectors>(list, begin, end, box, c.scaled, [&, box, area](int64_t k) {
    return math::suppresses(box_at(list, k), box, area, test.threshold) && hit(k);
  });
}

// Drops the candidates from i on. Returns the number of settled candidates: all of them.
template <typename T>
DETOPS_INLINE int64_t drop_rest(const NmsSegment<T>& s, int64_t i) {
  __builtin_memset(s.keep + i, 0, static_cast<size_t>(s.count - i));
  return s.count;
}

// Returns the first kept box before box i that suppresses it, or i if there is none. Only for
// thresholds below 0, where even disjoint boxes suppress each other: too rare for a fast path.
template <typename T, typename Kept>
DETOPS_INLINE int64_t first_suppressing(const NmsSegment<T>& s, int64_t i, const Kept& kept) {
  const math::Box<T> box = box_at(s, i);
  int64_t j = 0;
  for (; j < i; ++j) {
    if (kept(j) && math::suppresses(box_at(s, j), box, math::area(box), s.threshold)) break;
  }
  return j;
}

// Compares each candidate with all boxes kept so far: O(N K) for K kept boxes. No index is faster
// while K is small or hits come early. Stops once the list is so long that an index for the rest
// pays off. Returns the number of settled candidates.
template <typename T>
int64_t nms_flat(NmsSegment<T> s, NmsBoxes<T> kept) {
  if (s.threshold >= 1 || s.limit == 0) {  // an IoU is at most 1: the first `limit` boxes are kept
    for (int64_t i = 0; i < s.count; ++i) s.keep[i] = i < s.limit;
    return s.count;
  }
  // Costs of an index lookup, and of building the index per box, in steps of two vectors.
  const int64_t lookup_cost = s.threshold < 0.05 ? 12 : 5, build_cost = s.threshold < 0.05 ? 6 : 2;
  constexpr int64_t kWindow = 64, kStep = 2 * kLanes<T>;
  const auto test = suppression_test<T>(s.threshold);
  int64_t count = 0, scanned = 0, remaining = s.limit;
  for (int64_t i = 0; i < s.count; ++i) {
    if (i % kWindow == 0) {
      if ((scanned / kWindow - lookup_cost) * (s.count - i) > build_cost * s.count) return i;
      scanned = 0;
    }
    const Candidate<T> c = candidate(s, i, test);
    bool suppressed = false;
    if (s.threshold < 0) {
      suppressed = first_suppressing(s, i, [&](int64_t j) { return s.keep[j] != 0; }) < i;
    } else if (c.can_overlap) {
      int64_t last = count;
      suppressed = scan<2>(kept, 0, count, c, test, [&](int64_t k) {
        last = k;
        return true;
      });
      scanned += last / kStep + 1;
      if (!suppressed) put(kept, count++, c);
    }
    s.keep[i] = !suppressed;
    if (!suppressed && --remaining == 0) return drop_rest(s, i + 1);
  }
  return s.count;
}

// Sets match[i] to the first kept candidate that suppresses candidate i, or to i if there is none.
// `kept` and `kept_index` have room for all boxes. Unlike an index, an ordered list yields the
// first match.
template <typename T>
void nms_match(const NmsSegment<T>& s, const NmsBoxes<T>& kept, uint32_t* kept_index,
               uint32_t* match) {
  const auto test = suppression_test<T>(s.threshold);
  const auto is_kept = [&](int64_t j) { return match[j] == j; };
  int64_t count = 0;
  for (int64_t i = 0; i < s.count; ++i) {
    match[i] = static_cast<uint32_t>(s.threshold < 0 ? first_suppressing(s, i, is_kept) : i);
    const Candidate<T> c = candidate(s, i, test);
    if (!c.can_overlap || s.threshold < 0 || s.threshold >= 1) continue;
    const auto hit = [&](int64_t k) {
      match[i] = kept_index[k];
      return true;
    };
    if (scan<2>(kept, 0, count, c, test, hit)) continue;
    kept_index[count] = static_cast<uint32_t>(i);
    put(kept, count++, c);
  }
}

// Calls visit(cell) for each cell that can hold a box that suppresses the candidate, until it
// returns true. Returns whether it did.
template <typename T, typename Visit>
DETOPS_INLINE bool any_nearby_cell(const NmsGrid<T>& grid, const Candidate<T>& c, Visit&& visit) {
  const T x = grid_centre(c.box.x1, c.box.x2), y = grid_centre(c.box.y1, c.box.y2);
  const double ratio = grid.ratio * (1 - kGridSlack), box_size = grid_size(c.box, grid.by_side);
  const int first = math::max(grid.min_class, size_class(box_size * ratio));
  // Large boxes come first, because their grids have few cells.
  for (int size = math::min(grid.max_class, size_class(box_size / ratio)); size >= first; --size) {
    const GridLevel<T>& level = grid.levels[size];
    if (level.x.cells == 0) continue;
    const T rx = grid_reach(grid.reach, c.box.x1, c.box.x2, level.x.max_extent);
    const T ry = grid_reach(grid.reach, c.box.y1, c.box.y2, level.y.max_extent);
    const int64_t left = grid_cell(x - rx, level.x), right = grid_cell(x + rx, level.x);
    const int64_t top = grid_cell(y - ry, level.y), bottom = grid_cell(y + ry, level.y);
    for (int64_t row = top; row <= bottom; ++row) {
      const GridCell* cells = grid.cells + level.first + row * level.x.cells;
      for (int64_t column = left; column <= right; ++column) {
        if (visit(cells[column])) return true;
      }
    }
  }
  return false;
}

// Returns whether a box in the grid suppresses candidate i and hit(slot) returns true for it.
template <typename T, typename Hit>
DETOPS_INLINE bool is_suppressed(const NmsGrid<T>& grid, int64_t i, const Candidate<T>& c,
                                 const SuppressionTest<T>& test, const Hit& hit) {
  const auto visit = [&](const GridCell& cell) {
    return scan<1>(grid.boxes, cell.begin, cell.end, c, test, hit);
  };
  // A suppressing box is most often in the candidate's own cell.
  return visit(grid.cells[grid.cell[i]]) || any_nearby_cell(grid, c, visit);
}

// Settles the candidates from `settled` on. Of the earlier ones, the kept ones enter the grid.
template <typename T>
void nms_grid(NmsSegment<T> s, NmsGrid<T> grid, int64_t settled) {
  const auto test = suppression_test<T>(s.threshold);
  int64_t remaining = s.limit;
  for (int64_t i = 0; i < s.count; ++i) {
    const Candidate<T> c = candidate(s, i, test);
    const bool indexed = grid.cell[i] >= 0;
    if (i >= settled) {
      s.keep[i] = !indexed || !is_suppressed(grid, i, c, test, [](int64_t) { return true; });
    }
    if (!s.keep[i]) continue;
    if (indexed) put(grid.boxes, grid.cells[grid.cell[i]].end++, c);
    if (--remaining == 0) {
      drop_rest(s, i + 1);
      return;
    }
  }
}

// Like nms_grid, but for a strip. A candidate is open if it reaches across a cut, or if the first
// box found that suppresses it is open. Open boxes enter the grid like kept ones.
template <typename T>
void nms_strip(const NmsSegment<T>& s, const NmsGrid<T>& grid, NmsOpen<T>& strip) {
  const auto test = suppression_test<T>(s.threshold);
  for (int64_t i = 0; i < s.count; ++i) {
    const Candidate<T> c = candidate(s, i, test);
    s.keep[i] = 1;
    if (grid.cell[i] < 0) continue;
    uint32_t suppressor = kNoSlot;
    const auto hit = [&](int64_t k) {
      suppressor = static_cast<uint32_t>(k);
      return true;
    };
    if (is_suppressed(grid, i, c, test, hit) && !(strip.slot_box[suppressor] & kOpenSlot)) {
      s.keep[i] = 0;
      continue;
    }
    const T low = strip.along_y ? c.box.y1 : c.box.x1, high = strip.along_y ? c.box.y2 : c.box.x2;
    const T middle = grid_centre(low, high), r = grid_reach(grid.reach, low, high);
    const bool open = suppressor != kNoSlot || !(middle - r > strip.low && middle + r < strip.high);
    const uint32_t slot = grid.cells[grid.cell[i]].end++;
    put(grid.boxes, slot, c);
    strip.slot_box[slot] = static_cast<uint32_t>(i) | (open ? kOpenSlot : 0);
    if (open) {
      strip.box[strip.count] = static_cast<uint32_t>(i);
      strip.suppressor[strip.count] = suppressor;
      strip.slot[strip.count++] = slot;
    }
  }
}

// Returns whether one of the first `limit` boxes of a strip suppresses candidate i of `s`, the
// segment of this or another strip.
template <typename T>
bool nms_suppressed(const NmsSegment<T>& s, int64_t i, const NmsGrid<T>& grid,
                    const NmsOpen<T>& strip, int64_t limit) {
  const auto test = suppression_test<T>(s.threshold);
  const Candidate<T> c = candidate(s, i, test);
  return any_nearby_cell(grid, c, [&](const GridCell& cell) {
    return scan<1>(grid.boxes, cell.begin, cell.end, c, test,
                   [&](int64_t k) { return (strip.slot_box[k] & ~kOpenSlot) < limit; });
  });
}
