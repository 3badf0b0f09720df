// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../simd/bounds.inl"

// Compares each candidate with the boxes kept so far: first by bounds, then by the IoU of the few
// that pass, rounded to T. `kept` and `index` have room for all boxes.
template <typename T>
void quadri_nms(const math::Quad* boxes, int64_t count, double threshold,
                const NmsBoxes<float>& kept, uint32_t* index, uint8_t* keep) {
  const double factor = bounds_factor(threshold);
  int64_t n = 0;
  for (int64_t i = 0; i < count; ++i) {
    const math::Quad& box = boxes[i];
    const RotatedBounds bounds =
        outer_bounds(bounding_box(box.corners, 4), math::area(box), factor);
    const auto hit = [&](int64_t k) {
      return math::suppresses<T>(boxes[index[k]], box, threshold);
    };
    bool suppressed = false;
    if (threshold < 0) {  // even disjoint boxes suppress each other
      for (int64_t k = 0; k < n && !suppressed; ++k) suppressed = hit(k);
    } else {
      suppressed = scan_bounds<2>(kept, 0, n, bounds.box, bounds.scaled, hit);
    }
    keep[i] = !suppressed;
    if (suppressed) continue;
    put(kept, n, bounds);
    index[n++] = static_cast<uint32_t>(i);
  }
}
