// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "../common/box_columns.h"
#include "../common/host.h"
#include "../common/sort.h"

namespace detops::cpu {

// A grid index over kept boxes. IoU > t >= 0 implies that:
// * the areas differ by a factor below 1 / t, and so do the longer sides;
// * the centres in x are within (1 - t) / (2 t) of the smaller width, and within the mean of both
//   widths; likewise in y.
// Boxes are therefore grouped by size class: areas within a factor of 4, or longer sides within a
// factor of 2. Within a class, a box belongs to the cell of a uniform grid that holds its centre. A
// candidate is compared with a few cells of a few classes.
constexpr int kNmsClasses = 128;

struct GridCell {
  uint32_t begin, end;  // slots of its boxes
};

template <typename T>
struct GridAxis {
  int32_t cells;    // 0 if the class has no boxes
  T origin, scale;  // cell = (centre - origin) * scale
  T max_extent;     // the largest extent of a box
};

template <typename T>
struct GridLevel {
  GridAxis<T> x, y;
  int64_t first;      // index of the cell at row 0, column 0
  int64_t count;      // number of boxes
  double total_size;  // sum of the sizes of the boxes
};

template <typename T>
struct NmsGrid {
  const GridLevel<T>* levels;  // [kNmsClasses]
  GridCell* cells;
  const int32_t* cell;       // [count]: cell of each candidate, -1 if it needs no slot
  NmsBoxes<T> boxes;         // by slot
  double reach;              // (1 - t) / (2 t)
  bool by_side;              // how size is defined; see grid_size
  double ratio;              // minimum ratio of two sizes at IoU > t
  int min_class, max_class;  // non-empty class
};

// Slack for the rounding of areas and centres.
constexpr double kGridSlack = 1e-5;

// Returns the class of an area: half its exponent. Monotone, so a range of areas is a range of
// classes.
DETOPS_SHARED_INLINE int size_class(double area) {
  const float narrow = static_cast<float>(area);
  return static_cast<int>(math::float_bits(narrow) >> 24 & 0x7f);
}

// Returns the area of a box or, with `by_side`, the square of its longer side. A very low threshold
// says little about areas, and classes by side limit the reach of the boxes in a class.
template <typename T>
DETOPS_SHARED_INLINE double grid_size(const math::Box<T>& box, bool by_side) {
  const double side = double(math::max(box.x2 - box.x1, box.y2 - box.y1));
  return by_side ? math::min(side * side, 1e38) : double(math::area(box));
}

// Returns the cell of a centre along an axis. Monotone. Outliers fall into the outermost cells.
template <typename T>
DETOPS_SHARED_INLINE int64_t grid_cell(T centre, const GridAxis<T>& axis) {
  const T position = (centre - axis.origin) * axis.scale;
  return position > 0 ? (position < T(axis.cells) ? static_cast<int64_t>(position) : axis.cells - 1)
                      : 0;
}

template <typename T>
DETOPS_SHARED_INLINE T grid_centre(T low, T high) {
  return T(0.5) * low + T(0.5) * high;
}

// Returns how far from the centre of [low, high] the centre of an overlapping box can be, if that
// box is at most `max_extent` wide.
template <typename T>
DETOPS_SHARED_INLINE T grid_reach(double reach, T low, T high,
                                  T max_extent = std::numeric_limits<T>::infinity()) {
  const T extent = high - low, smaller = extent < max_extent ? extent : max_extent;
  const T size = (low < 0 ? -low : low) + (high < 0 ? -high : high);
  const T distance = math::min(smaller * T(reach), T(0.5) * extent + T(0.5) * max_extent);
  return distance + (smaller + extent) * T(kGridSlack) + size * T(1e-6);
}

constexpr uint32_t kOpenSlot = uint32_t(1) << 31;

// A strip of the image between two cuts, with its open boxes; see nms_strips.h.
template <typename T>
struct NmsOpen {
  bool along_y;  // the cuts are at y coordinates, not x
  T low, high;
  uint32_t* slot_box;    // box in each slot, plus kOpenSlot if it is open
  uint32_t *box, *slot;  // the open boxes in order, and their slots
  uint32_t* suppressor;  // slot of an earlier open box that would suppress it, or kNoSlot
  int64_t count;
};

// Owns the grid of one segment. Memory is reused for the next segment.
template <typename T>
class NmsGridStorage {
 public:
  // Returns an empty grid with a slot for every candidate from `settled` on, and for the kept ones
  // before.
  NmsGrid<T> build(const NmsSegment<T>& s, int64_t settled) {
    const double reach = (1 - s.threshold) / (2 * s.threshold);
    const bool by_side = s.threshold < 0.05;
    int32_t* cell = cell_.reserve(s.count);
    assign_size_classes(s, settled, by_side, cell);
    const int64_t cells = lay_out_levels(centre_range(s.x1, s.x2, cell, s.count),
                                         centre_range(s.y1, s.y2, cell, s.count), reach);

    GridCell* table = table_.reserve(cells + 1);
    for (int64_t i = 0; i <= cells; ++i) table[i] = {0, 0};
    for (int64_t i = 0; i < s.count; ++i) {
      if (cell[i] < 0) continue;
      const GridLevel<T>& level = levels_[cell[i]];
      const int64_t column = grid_cell(grid_centre(s.x1[i], s.x2[i]), level.x);
      const int64_t row = grid_cell(grid_centre(s.y1[i], s.y2[i]), level.y);
      cell[i] = static_cast<int32_t>(level.first + row * level.x.cells + column);
      ++table[cell[i]].end;
    }
    uint32_t slots = 0;
    for (int64_t i = 0; i < cells; ++i) {
      const uint32_t size = table[i].end;
      table[i] = {slots, slots};
      slots += size;
    }
    int min_class = 0, max_class = kNmsClasses - 1;
    while (min_class < max_class && levels_[min_class].x.cells == 0) ++min_class;
    while (min_class < max_class && levels_[max_class].x.cells == 0) --max_class;
    const double ratio = by_side ? s.threshold * s.threshold : s.threshold;
    return {levels_, table,     cell,     boxes_.reserve(slots), reach, by_side,
            ratio,   min_class, max_class};
  }

 private:
  static constexpr int64_t kSamples = 64, kBoxesPerCell = 4;

  // Stores in `cell` the size class of each box that needs a slot, and -1 for the others.
  void assign_size_classes(const NmsSegment<T>& s, int64_t settled, bool by_side, int32_t* cell) {
    std::fill_n(levels_, kNmsClasses, GridLevel<T>{});
    for (int64_t i = 0; i < s.count; ++i) {
      const math::Box<T> box = box_at(s, i);
      cell[i] = -1;
      if (!can_overlap(box) || (i < settled && !s.keep[i])) continue;
      const double size = grid_size(box, by_side);
      cell[i] = size_class(size);
      GridLevel<T>& level = levels_[cell[i]];
      level.x.max_extent = std::max(level.x.max_extent, box.x2 - box.x1);
      level.y.max_extent = std::max(level.y.max_extent, box.y2 - box.y1);
      level.total_size += size;
      ++level.count;
    }
  }

  struct Range {
    double low, high;
  };

  // Returns limits of the centres along an axis that a few outliers do not move: the 1/16 and 15/16
  // quantiles of a sample, extended as far as evenly spread centres would reach.
  static Range centre_range(const T* low, const T* high, const int32_t* cell, int64_t count) {
    T centre[kSamples] = {};
    int64_t samples = 0;
    for (int64_t i = 0; i < count; i += divide_up(count, kSamples)) {
      if (cell[i] >= 0) centre[samples++] = grid_centre(low[i], high[i]);
    }
    std::sort(centre, centre + samples);
    const int64_t trimmed = samples / 16;
    const double a = double(centre[trimmed]),
                 b = double(centre[std::max<int64_t>(0, samples - 1 - trimmed)]);
    return {a - (b - a) / 14, b + (b - a) / 14};
  }

  // Returns `max_cells` also if the range and the side are infinite and their ratio is NaN.
  static double cells_along(const Range& range, double side, double max_cells) {
    const double cells = (range.high - range.low) / side + 1;
    return cells < max_cells ? cells : max_cells;
  }

  static void divide(const Range& range, double cells, GridAxis<T>& axis) {
    axis.cells = static_cast<int32_t>(cells);
    axis.origin = static_cast<T>(range.low);
    axis.scale = static_cast<T>(
        range.high > range.low ? std::min(axis.cells / (range.high - range.low), 1e30) : 1.0);
  }

  // Divides each class into cells. A cell is about twice the reach of a typical box, so that a
  // lookup visits one or two along each axis, but cells are only a fraction as many as boxes.
  // Returns the number of cells of all classes.
  int64_t lay_out_levels(const Range& x, const Range& y, double reach) {
    int64_t cells = 0;
    for (int size = 0; size < kNmsClasses; ++size) {
      GridLevel<T>& level = levels_[size];
      if (level.count == 0) continue;
      const double typical = std::sqrt(level.total_size / double(level.count));
      const double side = 2 * std::min(reach, 1.0) * typical;
      const double max_cells = double(level.count) / kBoxesPerCell + 1;
      double columns = cells_along(x, side, max_cells), rows = cells_along(y, side, max_cells);
      const double excess = columns * rows / max_cells;
      if (excess > 1) {
        columns = std::max(1.0, columns / std::sqrt(excess));
        rows = std::max(1.0, std::min(rows, max_cells / columns));
      }
      divide(x, columns, level.x);
      divide(y, rows, level.y);
      level.first = cells;
      cells += int64_t(level.x.cells) * level.y.cells;
    }
    return cells;
  }

  GridLevel<T> levels_[kNmsClasses];
  Buffer<int32_t> cell_;
  Buffer<GridCell> table_;
  NmsBoxList<T> boxes_;
};

}  // namespace detops::cpu
