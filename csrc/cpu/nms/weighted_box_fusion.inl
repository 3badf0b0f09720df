// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../../math/overlap.inl"

// The first of the boxes that overlap this one most, if that is above the threshold, else -1.
int64_t best_overlap(const FusedColumns& list, const math::Box<double>& box, double area,
                     double threshold) {
  const math::Box<Vector<double>> a{splat(box.x1), splat(box.y1), splat(box.x2), splat(box.y2)};
  const Vector<double> of_box = splat(area);
  Vector<double> most = splat(threshold);
  Vector<int64_t> where{}, at{};
  for (int64_t i = 0; i < kLanes<double>; ++i) at[i] = i;
  where -= 1;
  for (int64_t j = 0; j < list.count; j += kLanes<double>) {
    const math::Box<Vector<double>> b{load(list.x1 + j), load(list.y1 + j), load(list.x2 + j),
                                      load(list.y2 + j)};
    const Vector<double> meet = pairwise::intersection(a, b);
    // Most boxes do not meet: a comparison costs less than a division.
    if (threshold < 0 || greater_bits(meet, Vector<double>{}) != 0) {
      const Vector<double> iou = pairwise::iou(meet, load(list.area + j) + of_box - meet);
      where = iou > most ? at : where;
      most = iou > most ? iou : most;
    }
    at += kLanes<double>;
  }
  int64_t best = where[0];
  double overlap = most[0];
  for (int64_t i = 1; i < kLanes<double>; ++i) {
    if (where[i] < 0) continue;
    if (best < 0 || most[i] > overlap || (most[i] == overlap && where[i] < best)) {
      best = where[i], overlap = most[i];
    }
  }
  return best < list.count ? best : -1;
}
