// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nms_boxes.h"
#include "sort.h"

namespace detops::cpu {

// An index over kept boxes. IoU > t >= 0 implies that areas differ by a factor below 1 / t, and
// that centres are within (1 - t) / (2 t) of the smaller width in x, and within the mean of both
// widths; likewise in y. So boxes are filed by size class (areas within a factor of 4), and within
// a class by the cell of a uniform grid that holds their centre; a candidate looks at a few cells
// of a few classes.
constexpr int kNmsClasses = 128;

struct GridCell {
  uint32_t begin, end;  // slots of its boxes
};

template <typename T>
struct GridAxis {
  int32_t cells;  // 0 where no box is of this class
  T low, per;     // cell = (centre - low) * per
  T widest;       // the largest extent of a box
};

template <typename T>
struct GridLevel {
  GridAxis<T> x, y;
  int64_t first;  // cell of row 0, column 0
};

template <typename T>
struct NmsGrid {
  const GridLevel<T>* levels;  // [kNmsClasses]
  GridCell* cells;
  const int32_t* cell;    // [count]: of each candidate, -1 for a box that meets nothing
  NmsBoxes<T> boxes;      // by slot
  double reach;           // (1 - t) / (2 t)
  double ratio;           // t
  int smallest, largest;  // classes that have boxes
};

// Slack for the rounding of areas and centres.
constexpr double kGridSlack = 1e-5;

// Class of an area: its exponent, halved. Monotone, so ranges of areas are ranges of classes.
DETOPS_SHARED_INLINE int grid_class(double area) {
  const float narrow = static_cast<float>(area);
  return static_cast<int>(math::float_bits(narrow) >> 24 & 0x7f);
}

// Monotone in the centre, also for outliers, which land in the outermost cells.
template <typename T>
DETOPS_SHARED_INLINE int64_t grid_cell(T centre, const GridAxis<T>& axis) {
  const T at = (centre - axis.low) * axis.per;
  return at > 0 ? (at < T(axis.cells) ? static_cast<int64_t>(at) : axis.cells - 1) : 0;
}

template <typename T>
DETOPS_SHARED_INLINE T grid_centre(T low, T high) {
  return T(0.5) * low + T(0.5) * high;
}

// How far from its centre a box of this extent can find the centre of one it overlaps, which is no
// wider than `widest`.
template <typename T>
DETOPS_SHARED_INLINE T grid_reach(double reach, T low, T high,
                                  T widest = std::numeric_limits<T>::infinity()) {
  const T extent = high - low, smaller = extent < widest ? extent : widest;
  const T size = (low < 0 ? -low : low) + (high < 0 ? -high : high);
  const T apart = math::min(smaller * T(reach), T(0.5) * extent + T(0.5) * widest);
  return apart + (smaller + extent) * T(kGridSlack) + size * T(1e-6);
}

constexpr uint32_t kOpenSlot = uint32_t(1) << 31;

// A strip of the picture, between two cuts, and its open boxes; see nms_strips.h.
template <typename T>
struct NmsOpen {
  bool along_y;  // the cuts are at these y, not x
  T low, high;
  uint32_t* slot_box;    // the box in each slot; kOpenSlot is added where it is open
  uint32_t *box, *slot;  // the open boxes in order, and their slots
  uint32_t* met;         // the slot of an earlier open box that would suppress it, or kNoSlot
  int64_t count;
};

// Owns a grid over the boxes of one segment; memory is kept from one segment to the next.
template <typename T>
class NmsGridStorage {
 public:
  // A grid with a slot for every candidate from `settled` on and for those kept before; all empty.
  NmsGrid<T> build(const NmsSegment<T>& s, int64_t settled) {
    const double reach = (1 - s.threshold) / (2 * s.threshold);
    int32_t* cell = cell_.reserve(s.count);
    take_samples(s, settled, cell);
    int64_t cells = 0;
    for (int size = 0; size < kNmsClasses; ++size) cells = place_level(size, reach, cells);

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
    return {levels_, table, cell, boxes_.reserve(slots), reach, s.threshold, smallest, largest};
  }

 private:
  static constexpr int64_t kSamples = 32, kBoxesPerCell = 4;

  struct AxisSamples {
    T widest, centre[kSamples], extent[kSamples];
  };
  struct Samples {
    int64_t count, every;
    AxisSamples x, y;
  };

  // With `full`, every other sample makes room; `place`: of the new one, or -1.
  static void take(T low, T high, bool full, int64_t place, AxisSamples& of) {
    of.widest = std::max(of.widest, high - low);
    for (int64_t k = 0; full && k < kSamples / 2; ++k) {
      of.centre[k] = of.centre[2 * k];
      of.extent[k] = of.extent[2 * k];
    }
    if (place < 0) return;
    of.centre[place] = grid_centre(low, high);
    of.extent[place] = high - low;
  }

  // Leaves the size class of each box that needs a slot in `cell`, -1 for the others, and in
  // samples_ a few boxes of each class, evenly spread.
  void take_samples(const NmsSegment<T>& s, int64_t settled, int32_t* cell) {
    samples_.reserve(kNmsClasses);
    for (int size = 0; size < kNmsClasses; ++size) {
      samples_[size].count = 0;
      samples_[size].every = 1;
      samples_[size].x.widest = samples_[size].y.widest = 0;
    }
    for (int64_t i = 0; i < s.count; ++i) {
      const math::Box<T> box = box_at(s, i);
      cell[i] = -1;
      if (!can_meet(box) || (i < settled && !s.keep[i])) continue;
      cell[i] = grid_class(math::area(box));
      Samples& of = samples_[cell[i]];
      // Every 1st, 2nd, 4th ... box: the stride doubles when the store is full.
      const bool full = of.count == kSamples * of.every;
      if (full) of.every *= 2;
      const int64_t place = of.count % of.every == 0 ? of.count / of.every : -1;
      take(box.x1, box.x2, full, place, of.x);
      take(box.y1, box.y2, full, place, of.y);
      ++of.count;
    }
  }

  struct Limits {
    double low, high, cells;
  };

  // Limits that a few outliers do not move: 1/16 and 15/16 quantiles, and as much again outside as
  // evenly spread centres would need. A cell is about twice the reach of a typical box, so that a
  // look meets one or two along each axis.
  static Limits limits_of(AxisSamples& of, int64_t count, double reach, double most) {
    T* const typical = of.extent + count / 2;
    std::sort(of.centre, of.centre + count);
    std::nth_element(of.extent, typical, of.extent + count);
    const double a = double(of.centre[count / 16]), b = double(of.centre[count - 1 - count / 16]);
    const double low = a - (b - a) / 14, high = b + (b - a) / 14;
    return {low, high,
            std::min((high - low) / (2 * std::min(reach, 1.0) * double(*typical)) + 1, most)};
  }

  static GridAxis<T> axis_of(const Limits& at, const AxisSamples& of) {
    const auto cells = static_cast<int32_t>(at.cells);
    const double per = at.high > at.low ? std::min(double(cells) / (at.high - at.low), 1e30) : 1.0;
    return {cells, static_cast<T>(at.low), static_cast<T>(per), of.widest};
  }

  // No more cells than a fraction of the boxes. Returns where the next level's cells begin.
  int64_t place_level(int size, double reach, int64_t first) {
    Samples& of = samples_[size];
    levels_[size] = {};
    if (of.count == 0) return first;
    const int64_t count = (of.count + of.every - 1) / of.every;
    const double most = double(of.count) / kBoxesPerCell + 1;
    Limits x = limits_of(of.x, count, reach, most), y = limits_of(of.y, count, reach, most);
    const double excess = x.cells * y.cells / most;
    if (excess > 1) {
      x.cells = std::max(1.0, x.cells / std::sqrt(excess));
      y.cells = std::max(1.0, std::min(y.cells, most / x.cells));
    }
    levels_[size] = {axis_of(x, of.x), axis_of(y, of.y), first};
    return first + int64_t(levels_[size].x.cells) * levels_[size].y.cells;
  }

  GridLevel<T> levels_[kNmsClasses];
  Buffer<Samples> samples_;
  Buffer<int32_t> cell_;
  Buffer<GridCell> table_;
  NmsBoxList<T> boxes_;
};

}  // namespace detops::cpu
