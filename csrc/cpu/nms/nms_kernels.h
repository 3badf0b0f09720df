// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "../../math/box.h"
#include "../../math/half.h"

// What the NMS kernels read and write. Plain data and always-inline functions only: this header is
// shared by code compiled for different instruction sets.
namespace detops::cpu {

#define DETOPS_SHARED_INLINE inline __attribute__((always_inline))

// Boxes as a structure of arrays, with the filter's scaled areas. Lists of them are read a few
// vectors at a time, hence room for kNmsPadding boxes behind the last.
template <typename T>
struct NmsBoxes {
  T *x1, *y1, *x2, *y2, *scaled;
};
constexpr int64_t kNmsPadding = 64;

// Boxes of one class in the order of selection.
template <typename T>
struct NmsSegment {
  const T* x1;  // [count]
  const T* y1;
  const T* x2;
  const T* y2;
  int64_t count;
  double threshold;  // not NaN
  uint8_t* keep;     // [count], out: 1 for a box that no kept box before it suppresses
};

// Below 0 even boxes that do not meet suppress each other. From 0 on a box suppresses nothing, and
// nothing suppresses it, where it is inverted or its area is NaN, infinite or not positive.
template <typename T>
DETOPS_SHARED_INLINE bool can_meet(const math::Box<T>& box) {
  const T area = math::area(box);
  return area > 0 && area - area == 0 && box.x2 > box.x1;
}

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

constexpr uint32_t kOpenSlot = uint32_t(1) << 31, kNoSlot = ~uint32_t(0);

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

// See nms.inl.
template <typename T>
struct NmsKernels {
  int64_t (*flat)(const NmsSegment<T>&, const NmsBoxes<T>& kept);
  void (*grid)(const NmsSegment<T>&, const NmsGrid<T>&, int64_t settled);
  void (*tree)(const NmsSegment<T>&, const NmsTree<T>&, int64_t settled);
  void (*strip)(const NmsSegment<T>&, const NmsGrid<T>&, NmsOpen<T>&);
  bool (*suppressed)(const NmsSegment<T>&, int64_t i, const NmsGrid<T>&, const NmsOpen<T>&,
                     int64_t limit);
};

// The table for the instruction set in use.
template <typename T>
const NmsKernels<T>& nms_kernels();

}  // namespace detops::cpu
