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
  Largest<double> best = larger_than(threshold);
  for (int64_t j = 0; j < count; j += kLanes<double>) {
    const Vector<double> meet = pairwise::intersection(a, load_box(list, j));
    // Most boxes do not meet, and a comparison costs less than a division.
    if (threshold < 0 || greater_bits(meet, Vector<double>{}) != 0) {
      take<double>(best, pairwise::iou(meet, load(list.area + j) + area - meet));
    }
    best.at += kLanes<double>;
  }
  double overlap = 0;
  const int64_t first = first_of(best, overlap);
  return first < count ? first : -1;
}
