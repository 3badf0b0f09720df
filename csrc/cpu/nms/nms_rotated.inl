// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../boxes/rotated_boxes.inl"

// Below zero even boxes that do not meet suppress each other: rare, and not worth a fast path.
template <typename T>
void rotated_nms_plain(const RotatedSegment& s) {
  int64_t left = s.limit;
  for (int64_t i = 0; i < s.count; ++i) {
    s.keep[i] = left > 0;
    for (int64_t j = 0; j < i && s.keep[i]; ++j) {
      s.keep[i] = !(s.keep[j] && math::suppresses<T>(s.boxes[j], s.boxes[i], s.threshold));
    }
    left -= s.keep[i];
  }
}

// Each candidate against the boxes kept so far: first their bounds, then the few that pass. T is
// the type that an IoU is rounded to; `kept` and `index` have room for all boxes.
template <typename T>
void rotated_nms(const RotatedSegment& s, const NmsBoxes<float>& kept, uint32_t* index) {
  if (s.threshold < 0) return rotated_nms_plain<T>(s);
  int64_t count = 0, left = s.limit;
  for (int64_t i = 0; i < s.count; ++i) {
    s.keep[i] = left > 0;
    if (left == 0) continue;
    --left;
    // An IoU is at most 1, and that of an empty box 0 at most.
    if (s.threshold >= 1 || !(s.boxes[i].area > 0)) continue;
    RotatedPairs pairs{{}, 0};
    const auto exceeds = [&](uint32_t, double iou) {
      return static_cast<double>(static_cast<T>(iou)) > s.threshold;
    };
    const RotatedBounds& bounds = s.bounds[i];
    // Of boxes around one centre all bounds meet, but an intersection is at most the smaller area.
    // That costs more than it saves before a candidate has met many.
    int64_t met = 0;
    const auto too_unlike = [&](float a, float b) {
      return a + b > 1e-30f && !(math::min(a, b) > static_cast<float>(s.factor) * (a + b));
    };
    const auto hit = [&](int64_t k) {
      if (++met > 4 * kPairs && too_unlike(kept.scaled[k], bounds.scaled)) return false;
      return add(pairs, index[k], s.boxes[i], s.boxes, exceeds);
    };
    if (scan_bounds<2>(kept, 0, count, bounds.box, bounds.scaled, hit) ||
        flush(pairs, s.boxes[i], s.boxes, exceeds)) {
      s.keep[i] = 0;
      ++left;
    } else {
      put(kept, count, bounds);
      index[count++] = static_cast<uint32_t>(i);
    }
  }
}
