// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "../common/host.h"
#include "nms_boxes.h"
#include "sort.h"

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
  int32_t cells;  // 0 if the class has no boxes
  T low, per;     // cell = (centre - low) * per
  T widest;       // the largest extent of a box
};

template <typename T>
struct GridLevel {
  GridAxis<T> x, y;
  int64_t first;  // index of the cell at row 0, column 0
  int64_t count;  // number of boxes
  double sizes;   // sum of the sizes of the boxes
};

template <typename T>
struct NmsGrid {
  const GridLevel<T>* levels;  // [kNmsClasses]
  GridCell* cells;
  const int32_t* cell;    // [count]: cell of each candidate, -1 if it needs no slot
  NmsBoxes<T> boxes;      // by slot
  double reach;           // (1 - t) / (2 t)
  bool by_side;           // how size is defined; see grid_size
  double ratio;           // minimum ratio of two sizes at IoU > t
  int smallest, largest;  // non-empty class
};

// Slack for the rounding of areas and centres.
constexpr double kGridSlack = 1e-5;

// Returns the class of an area: half its exponent. Monotone, so a range of areas is a range of
// classes.
DETOPS_SHARED_INLINE int grid_class(double area) {
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
  const T at = (centre - axis.low) * axis.per;
  return at > 0 ? (at < T(axis.cells) ? static_cast<int64_t>(at) : axis.cells - 1) : 0;
}

template <typename T>
DETOPS_SHARED_INLINE T grid_centre(T low, T high) {
  return T(0.5) * low + T(0.5) * high;
}

// Returns how far from the centre of [low, high] the centre of an overlapping box can be, if that
// box is at most `widest` wide.
template <typename T>
DETOPS_SHARED_INLINE T grid_reach(double reach, T low, T high,
                                  T widest = std::numeric_limits<T>::infinity()) {
  const T extent = high - low, smaller = extent < widest ? extent : widest;
  const T size = (low < 0 ? -low : low) + (high < 0 ? -high : high);
  const T apart = math::min(smaller * T(reach), T(0.5) * extent + T(0.5) * widest);
  return apart + (smaller + extent) * T(kGridSlack) + size * T(1e-6);
}

constexpr uint32_t kOpenSlot = uint32_t(1) << 31;

// A strip of the image between two cuts, with its open boxes; see nms_strips.h.
template <typename T>
struct NmsOpen {
  bool along_y;  // the cuts are at y coordinates, not x
  T low, high;
  uint32_t* slot_box;    // box in each slot, plus kOpenSlot if it is open
  uint32_t *box, *slot;  // the open boxes in order, and their slots
  uint32_t* met;         // slot of an earlier open box that would suppress it, or kNoSlot
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
    sort_by_size(s, settled, by_side, cell);
    const int64_t cells = place_levels(limits_of(s.x1, s.x2, cell, s.count),
                                       limits_of(s.y1, s.y2, cell, s.count), reach);

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
    int smallest = 0, largest = kNmsClasses - 1;
    while (smallest < largest && levels_[smallest].x.cells == 0) ++smallest;
    while (smallest < largest && levels_[largest].x.cells == 0) --largest;
    const double ratio = by_side ? s.threshold * s.threshold : s.threshold;
    return {levels_, table, cell, boxes_.reserve(slots), reach, by_side, ratio, smallest, largest};
  }

 private:
  static constexpr int64_t kSamples = 64, kBoxesPerCell = 4;

  // Stores in `cell` the size class of each box that needs a slot, and -1 for the others.
  void sort_by_size(const NmsSegment<T>& s, int64_t settled, bool by_side, int32_t* cell) {
    std::fill_n(levels_, kNmsClasses, GridLevel<T>{});
    for (int64_t i = 0; i < s.count; ++i) {
      const math::Box<T> box = box_at(s, i);
      cell[i] = -1;
      if (!can_meet(box) || (i < settled && !s.keep[i])) continue;
      const double size = grid_size(box, by_side);
      cell[i] = grid_class(size);
      GridLevel<T>& level = levels_[cell[i]];
      level.x.widest = std::max(level.x.widest, box.x2 - box.x1);
      level.y.widest = std::max(level.y.widest, box.y2 - box.y1);
      level.sizes += size;
      ++level.count;
    }
  }

  struct Limits {
    double low, high;
  };

  // Returns limits of the centres along an axis that a few outliers do not move: the 1/16 and 15/16
  // quantiles of a sample, extended as far as evenly spread centres would reach.
  static Limits limits_of(const T* low, const T* high, const int32_t* cell, int64_t count) {
    T centre[kSamples] = {};
    int64_t samples = 0;
    for (int64_t i = 0; i < count; i += divide_up(count, kSamples)) {
      if (cell[i] >= 0) centre[samples++] = grid_centre(low[i], high[i]);
    }
    std::sort(centre, centre + samples);
    const int64_t beyond = samples / 16;
    const double a = double(centre[beyond]),
                 b = double(centre[std::max<int64_t>(0, samples - 1 - beyond)]);
    return {a - (b - a) / 14, b + (b - a) / 14};
  }

  // Returns `most` also if the range and the side are infinite and their ratio is NaN.
  static double cells_along(const Limits& at, double side, double most) {
    const double cells = (at.high - at.low) / side + 1;
    return cells < most ? cells : most;
  }

  static void divide(const Limits& at, double cells, GridAxis<T>& axis) {
    axis.cells = static_cast<int32_t>(cells);
    axis.low = static_cast<T>(at.low);
    axis.per =
        static_cast<T>(at.high > at.low ? std::min(axis.cells / (at.high - at.low), 1e30) : 1.0);
  }

  // Divides each class into cells. A cell is about twice the reach of a typical box, so that a
  // lookup visits one or two along each axis, but cells are only a fraction as many as boxes.
  // Returns the number of cells of all classes.
  int64_t place_levels(const Limits& x, const Limits& y, double reach) {
    int64_t cells = 0;
    for (int size = 0; size < kNmsClasses; ++size) {
      GridLevel<T>& level = levels_[size];
      if (level.count == 0) continue;
      const double typical = std::sqrt(level.sizes / double(level.count));
      const double side = 2 * std::min(reach, 1.0) * typical;
      const double most = double(level.count) / kBoxesPerCell + 1;
      double across = cells_along(x, side, most), down = cells_along(y, side, most);
      const double excess = across * down / most;
      if (excess > 1) {
        across = std::max(1.0, across / std::sqrt(excess));
        down = std::max(1.0, std::min(down, most / across));
      }
      divide(x, across, level.x);
      divide(y, down, level.y);
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
