// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../common/rotated_boxes.inl"

// Computes a row of the matrix: one box against `count` others.
template <math::Base base, typename T>
void rotated_iou_row(const RotatedBox& box, const RotatedBox* others, const NmsBoxes<float>& bounds,
                     int64_t count, T* row) {
  const RotatedBounds own = rotated_bounds(box, 0);
  __builtin_memset(row, 0, count * sizeof(T));
  RotatedPairs pairs{{}, 0};
  const auto use = [&](uint32_t k, double iou) {
    row[k] = iou == iou ? static_cast<T>(iou) : T(0);
    return false;
  };
  scan_bounds<2>(bounds, 0, count, own.box, own.scaled, [&](int64_t k) {
    return add(pairs, static_cast<uint32_t>(k), box, others, use, base);
  });
  flush(pairs, box, others, use, base);
}

// Computes the ratios of the pairs (a[i], b[i]), both [count, 5], a vector of pairs at a time.
template <typename T>
void rotated_iou_pairs(const T* a, const T* b, int64_t count, math::Base base, T* ratios) {
  RotatedBox first[kPairs], second[kPairs];
  uint32_t index[kPairs];
  for (int64_t k = 0; k < kPairs; ++k) index[k] = static_cast<uint32_t>(k);
  for (int64_t i = 0; i < count; i += kPairs) {
    const int64_t n = count - i < kPairs ? count - i : kPairs;
    for (int64_t k = 0; k < kPairs; ++k) {
      const int64_t pair = k < n ? i + k : i;
      first[k] = math::rotated_box(a + 5 * pair);
      second[k] = math::rotated_box(b + 5 * pair);
    }
    double ratio[kPairs];
    store(ratio, rotated::iou(load_boxes(first, index), load_boxes(second, index), base));
    for (int64_t k = 0; k < n; ++k) ratios[i + k] = ratio[k] == ratio[k] ? T(ratio[k]) : T(0);
  }
}
