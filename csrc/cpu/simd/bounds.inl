// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

// Calls hit(k) for the boxes k in [begin, end) of a list whose intersection with `box` exceeds the
// sum of the scaled areas, until it returns true; says whether it did.
template <int kVectors, typename T, typename Hit>
DETOPS_INLINE bool scan_bounds(const NmsBoxes<T>& list, int64_t begin, int64_t end,
                               const math::Box<T>& box, T scaled_area, Hit&& hit) {
  constexpr int64_t kWidth = kLanes<T>;
  const Vector<T> x1 = splat(box.x1), y1 = splat(box.y1), x2 = splat(box.x2), y2 = splat(box.y2);
  const Vector<T> scaled = splat(scaled_area);
  for (int64_t j = begin; j < end; j += kVectors * kWidth) {
    uint64_t bits = 0;
    for (int64_t v = 0; v < kVectors; ++v) {
      const int64_t k = j + v * kWidth;
      const Vector<T> w = vector_min(load(list.x2 + k), x2) - vector_max(load(list.x1 + k), x1);
      const Vector<T> h = vector_min(load(list.y2 + k), y2) - vector_max(load(list.y1 + k), y1);
      // One clamp is enough: the sum of scaled areas is never negative.
      bits |= uint64_t(greater_bits(vector_max(Vector<T>{}, w) * h, load(list.scaled + k) + scaled))
              << (v * kWidth);
    }
    if (end - j < kVectors * kWidth) bits &= (uint64_t(1) << (end - j)) - 1;
    for (; bits; bits &= bits - 1) {
      if (hit(j + __builtin_ctzll(bits))) return true;
    }
  }
  return false;
}
