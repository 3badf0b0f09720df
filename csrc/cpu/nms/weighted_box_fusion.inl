// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../../math/overlap.inl"
//
#include "../simd/bounds.inl"

// Returns the first of `count` boxes with the largest IoU with `box`, or -1 if that IoU is not
// above the threshold.
int64_t best_overlap(const BoxColumns<double>& list, int64_t count, const math::Box<double>& box,
                     double threshold) {
  const math::Box<Vector<double>> a = splat_box(box);
  const Vector<double> area = splat(math::area(box));
  LaneArgmax<double> best = argmax_above(threshold);
  for (int64_t j = 0; j < count; j += kLanes<double>) {
    const Vector<double> inter = pairwise::intersection(a, load_box(list, j));
    // Most boxes do not meet, and a comparison costs less than a division.
    if (threshold < 0 || greater_bits(inter, Vector<double>{}) != 0) {
      update<double>(best, pairwise::iou(inter, load(list.area + j) + area - inter));
    }
    best.next_index += kLanes<double>;
  }
  double overlap = 0;
  const int64_t first = reduce_argmax(best, overlap);
  return first < count ? first : -1;
}
