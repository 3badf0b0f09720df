// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "../../math/box.h"
#include "../common/buffer.h"
#include "nms_boxes.h"

namespace detops::cpu {

// An index over kept boxes. IoU > t > 0 implies that areas differ by a factor below 1 / t and that
// centres are within (1 - t) / (2 t) of the smaller width in x, and likewise in y. So boxes are
// filed by size class (areas within a factor of 4), and within a class by the cell of a uniform
// grid that holds their centre; a candidate looks at a few cells of a few classes.
constexpr int kNmsClasses = 128;
constexpr double kNmsGridThreshold = 0.05;  // below, the reach is so long that NmsTree is faster

struct GridCell {
  uint32_t begin, end;  // slots of its boxes
};

template <typename T>
struct GridLevel {
  int32_t columns, rows;  // 0 where no box is of this class
  int64_t first;          // cell of row 0, column 0
  T low_x, per_x;         // column = (x - low_x) * per_x
  T low_y, per_y;
  T widest, tallest;
};

template <typename T>
struct NmsGrid {
  const GridLevel<T>* levels;  // [kNmsClasses]
  GridCell* cells;
  const int32_t* cell;  // [count]: of each candidate, -1 for a box that meets nothing
  NmsBoxes<T> boxes;    // by slot
  double reach;         // (1 - t) / (2 t)
  double ratio;         // t
};

// Slack for the rounding of areas and centres.
constexpr double kGridSlack = 1e-5;

// Class of an area: its exponent, halved. Monotone, so ranges of areas are ranges of classes.
DETOPS_SHARED_INLINE int grid_class(double area) {
  const float narrow = static_cast<float>(area);
  return static_cast<int>(math::float_bits(narrow) >> 24 & 0x7f);
}

// Monotone in x, also for outliers, which land in the outermost cells.
template <typename T>
DETOPS_SHARED_INLINE int64_t grid_cell(T x, T low, T per, int32_t cells) {
  const T at = (x - low) * per;
  return at > 0 ? (at < T(cells) ? static_cast<int64_t>(at) : cells - 1) : 0;
}

template <typename T>
DETOPS_SHARED_INLINE T grid_centre(T low, T high) {
  return T(0.5) * low + T(0.5) * high;
}

// How far from its centre a box of this extent can find the centre of one it overlaps.
template <typename T>
DETOPS_SHARED_INLINE T grid_reach(double reach, T low, T high, T widest) {
  const T extent = high - low, smaller = extent < widest ? extent : widest;
  const T size = (low < 0 ? -low : low) + (high < 0 ? -high : high);
  return smaller * T(reach + kGridSlack) + extent * T(kGridSlack) + size * T(1e-6);
}

constexpr uint32_t kOpenSlot = uint32_t(1) << 31;

// A strip of the picture, between two cuts, and its open boxes; see nms_strips.h.
template <typename T>
struct NmsOpen {
  bool along_y;  // the cuts are at these y, not x
  T low, high;
  uint32_t* slot_box;  // the box in each slot; kOpenSlot is added where it is open
  uint32_t* box;       // the open boxes in order, and their slots
  uint32_t* slot;
  uint32_t* met;  // the slot of an earlier open box that would suppress it, or kNoSlot
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
      const int64_t column =
          grid_cell(grid_centre(s.x1[i], s.x2[i]), level.low_x, level.per_x, level.columns);
      const int64_t row =
          grid_cell(grid_centre(s.y1[i], s.y2[i]), level.low_y, level.per_y, level.rows);
      cell[i] = static_cast<int32_t>(level.first + row * level.columns + column);
      ++table[cell[i]].end;
    }
    uint32_t slots = 0;
    for (int64_t i = 0; i < cells; ++i) {
      const uint32_t size = table[i].end;
      table[i] = {slots, slots};
      slots += size;
    }
    const int64_t stride = (slots + 2 * kNmsPadding - 1) / kNmsPadding * kNmsPadding;
    T* x1 = boxes_.reserve(5 * stride);
    return {levels_, table,
            cell,    {x1, x1 + stride, x1 + 2 * stride, x1 + 3 * stride, x1 + 4 * stride},
            reach,   s.threshold};
  }

 private:
  static constexpr int64_t kSamples = 32;

  struct Samples {
    int64_t count, every;
    T widest, tallest;
    T x[kSamples], y[kSamples], width[kSamples], height[kSamples];
  };

  // Leaves the size class of each box that needs a slot in `cell`, -1 for the others, and in
  // samples_ a few boxes of each class, evenly spread.
  void take_samples(const NmsSegment<T>& s, int64_t settled, int32_t* cell) {
    samples_.reserve(kNmsClasses);
    for (int size = 0; size < kNmsClasses; ++size) {
      samples_[size].count = 0;
      samples_[size].every = 1;
      samples_[size].widest = samples_[size].tallest = 0;
    }
    for (int64_t i = 0; i < s.count; ++i) {
      const math::Box<T> box{s.x1[i], s.y1[i], s.x2[i], s.y2[i]};
      const T width = box.x2 - box.x1, height = box.y2 - box.y1;
      cell[i] = -1;
      if (!can_meet(box) || (i < settled && !s.keep[i])) continue;
      cell[i] = grid_class(math::area(box));
      Samples& of = samples_[cell[i]];
      of.widest = std::max(of.widest, width);
      of.tallest = std::max(of.tallest, height);
      // Every 1st, 2nd, 4th ... box: the stride doubles when the store is full.
      if (of.count == kSamples * of.every) {
        for (int64_t k = 0; k < kSamples / 2; ++k) {
          of.x[k] = of.x[2 * k];
          of.y[k] = of.y[2 * k];
          of.width[k] = of.width[2 * k];
          of.height[k] = of.height[2 * k];
        }
        of.every *= 2;
      }
      if (of.count % of.every == 0) {
        const int64_t k = of.count / of.every;
        of.x[k] = grid_centre(box.x1, box.x2);
        of.y[k] = grid_centre(box.y1, box.y2);
        of.width[k] = width;
        of.height[k] = height;
      }
      ++of.count;
    }
  }

  // Limits that a few outliers do not move: 1/16 and 15/16 quantiles, and as much again outside as
  // evenly spread centres would need.
  static void limits(T* samples, int64_t count, double& low, double& high) {
    std::sort(samples, samples + count);
    const double a = double(samples[count / 16]), b = double(samples[count - 1 - count / 16]);
    low = a - (b - a) / 14;
    high = b + (b - a) / 14;
  }

  static double median(T* samples, int64_t count) {
    std::nth_element(samples, samples + count / 2, samples + count);
    return double(samples[count / 2]);
  }

  static void place_axis(double low, double high, int32_t cells, T& origin, T& per) {
    origin = static_cast<T>(low);
    per = static_cast<T>(high > low ? std::min(double(cells) / (high - low), 1e30) : 1.0);
  }

  // Cells about twice the reach of a typical box, so that a look meets one or two along each axis,
  // but not more cells than a fraction of the boxes. Returns where the next level's cells begin.
  int64_t place_level(int size, double reach, int64_t first) {
    GridLevel<T>& level = levels_[size];
    Samples& of = samples_[size];
    level = {};
    if (of.count == 0) return first;
    const int64_t count = (of.count + of.every - 1) / of.every;
    double low_x, high_x, low_y, high_y;
    limits(of.x, count, low_x, high_x);
    limits(of.y, count, low_y, high_y);
    const double most = double(of.count) / kBoxesPerCell + 1;
    double columns = std::min((high_x - low_x) / (2 * reach * median(of.width, count)) + 1, most);
    double rows = std::min((high_y - low_y) / (2 * reach * median(of.height, count)) + 1, most);
    const double excess = columns * rows / most;
    if (excess > 1) {
      columns = std::max(1.0, columns / std::sqrt(excess));
      rows = std::max(1.0, std::min(rows, most / columns));
    }
    level.columns = static_cast<int32_t>(columns);
    level.rows = static_cast<int32_t>(rows);
    level.first = first;
    level.widest = of.widest;
    level.tallest = of.tallest;
    place_axis(low_x, high_x, level.columns, level.low_x, level.per_x);
    place_axis(low_y, high_y, level.rows, level.low_y, level.per_y);
    return first + int64_t(level.columns) * level.rows;
  }

  static constexpr int64_t kBoxesPerCell = 4;

  GridLevel<T> levels_[kNmsClasses];
  Buffer<Samples> samples_;
  Buffer<int32_t> cell_;
  Buffer<GridCell> table_;
  Buffer<T> boxes_;
};

}  // namespace detops::cpu
