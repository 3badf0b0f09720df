// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../../math/overlap.inl"
//
#include "../../math/rotated_box.inl"
//
#include "../simd/bounds.inl"

constexpr int64_t kPairs = kLanes<double>;

DETOPS_INLINE math::RotatedBox<Vector<double>> splat_box(const RotatedBox& b) {
  return {splat(b.x),   splat(b.y),   splat(b.half_w), splat(b.half_h),
          splat(b.cos), splat(b.sin), splat(b.area),   Vector<double>{}};
}

DETOPS_INLINE math::RotatedBox<Vector<double>> load_boxes(const RotatedBox* boxes,
                                                          const uint32_t* index) {
  // A box is a row of eight doubles, and a vector holds at most as many.
  Vector<double> columns[8];
  DETOPS_UNROLL for (int64_t c = 0; c < 8; c += kPairs) {
    DETOPS_UNROLL for (int64_t i = 0; i < kPairs; ++i) {
      columns[c + i] = load(&boxes[index[i]].x + c);
    }
    transpose<double>(columns + c);
  }
  return {columns[0], columns[1], columns[2], columns[3],
          columns[4], columns[5], columns[6], columns[7]};
}

// Pairs of one box with others that have passed the filter. `add` computes the pairs once they fill
// a vector, and `flush` the rest. Both call use(index, iou) for each computed pair until it returns
// true, and return whether it did. An undefined IoU is NaN.
struct RotatedPairs {
  uint32_t index[kPairs];
  int64_t count;
};

template <typename Use>
DETOPS_INLINE bool flush(RotatedPairs& pairs, const RotatedBox& box, const RotatedBox* others,
                         Use&& use, math::Base base = math::Base::kUnion) {
  if (pairs.count == 0) return false;
  for (int64_t i = pairs.count; i < kPairs; ++i) pairs.index[i] = pairs.index[0];
  double iou[kPairs];
  store(iou, rotated::iou(splat_box(box), load_boxes(others, pairs.index), base));
  const int64_t count = pairs.count;
  pairs.count = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (use(pairs.index[i], iou[i])) return true;
  }
  return false;
}

template <typename Use>
DETOPS_INLINE bool add(RotatedPairs& pairs, uint32_t index, const RotatedBox& box,
                       const RotatedBox* others, Use&& use, math::Base base = math::Base::kUnion) {
  pairs.index[pairs.count++] = index;
  return pairs.count == kPairs && flush(pairs, box, others, use, base);
}
