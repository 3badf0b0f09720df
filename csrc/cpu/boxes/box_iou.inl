// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../../math/overlap.inl"

template <typename T>
DETOPS_INLINE math::OverlapBox<Vector<T>> load_boxes(const OverlapBoxes<T>& b, int64_t j) {
  return {{load(b.x1 + j), load(b.y1 + j), load(b.x2 + j), load(b.y2 + j)},
          load(b.area + j),
          load(b.angle + j)};
}

template <typename T>
DETOPS_INLINE math::OverlapBox<Vector<T>> splat_box(const math::OverlapBox<T>& a) {
  return {{splat(a.box.x1), splat(a.box.y1), splat(a.box.x2), splat(a.box.y2)},
          splat(a.area),
          splat(a.angle)};
}

// One box against all others: a row of the matrix.
template <math::Overlap kind, typename T>
void overlap_row(const math::OverlapBox<T>& box, const OverlapBoxes<T>& others, T eps, T* row) {
  const math::OverlapBox<Vector<T>> a = splat_box(box);
  int64_t j = 0;
  for (; j + kLanes<T> <= others.count; j += kLanes<T>) {
    store(row + j, pairwise::overlap<kind, T>(a, load_boxes(others, j), eps));
  }
  if (j < others.count) {
    store_part(row + j, pairwise::overlap<kind, T>(a, load_boxes(others, j), eps),
               others.count - j);
  }
}

// The best IoU of one box with all others, and the first index that has it. There is at least one.
template <typename T>
void overlap_best(const math::OverlapBox<T>& box, const OverlapBoxes<T>& others, T& best,
                  int64_t& index) {
  using Index = lane_index_t<T>;
  const math::OverlapBox<Vector<T>> a = splat_box(box);
  Vector<T> most = splat(T(-1));
  Vector<Index> where{}, at{};
  for (int64_t i = 0; i < kLanes<T>; ++i) at[i] = static_cast<Index>(i);
  // Behind the last there are empty boxes, whose IoU of 0 comes too late to be the first.
  for (int64_t j = 0; j < others.count; j += kLanes<T>) {
    const Vector<T> iou = pairwise::overlap<math::Overlap::kIoU, T>(a, load_boxes(others, j), T(0));
    where = iou > most ? at : where;
    most = iou > most ? iou : most;
    at += static_cast<Index>(kLanes<T>);
  }
  best = most[0];
  index = where[0];
  for (int64_t i = 1; i < kLanes<T>; ++i) {
    if (most[i] > best || (most[i] == best && where[i] < index)) best = most[i], index = where[i];
  }
}
