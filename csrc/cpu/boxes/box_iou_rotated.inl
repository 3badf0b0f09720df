// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "rotated_boxes.inl"

// One box against all others: a row of the matrix.
template <math::Base base, typename T>
void rotated_iou_row(const RotatedBox& box, const RotatedBounds& bounds, const RotatedList& others,
                     T* row) {
  __builtin_memset(row, 0, others.count * sizeof(T));
  RotatedPairs pairs{{}, 0};
  const auto use = [&](uint32_t k, double iou) {
    row[k] = iou == iou ? static_cast<T>(iou) : T(0);
    return false;
  };
  scan_bounds<2>(others.bounds, 0, others.count, bounds.box, bounds.scaled, [&](int64_t k) {
    return add<base>(pairs, static_cast<uint32_t>(k), box, others.boxes, use);
  });
  flush<base>(pairs, box, others.boxes, use);
}
