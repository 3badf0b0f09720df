// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../common/rotated_boxes.inl"

// Compares each candidate with the boxes kept so far: first by bounds, then by the IoU of the few
// that pass, rounded to T. Keeps at most `limit` boxes and sets keep[i] to 1 for a box that no
// earlier kept box suppresses. `kept` and `index` have room for all boxes.
template <typename T>
void rotated_nms(const RotatedBox* boxes, int64_t boxes_count, double threshold, int64_t limit,
                 const NmsBoxes<float>& kept, uint32_t* index, uint8_t* keep) {
  const double factor = bounds_factor(threshold);
  int64_t count = 0, remaining = limit;
  for (int64_t i = 0; i < boxes_count; ++i) {
    keep[i] = remaining > 0;
    if (remaining == 0) continue;
    --remaining;
    // An IoU is at most 1, and that of an empty box at most 0.
    if (threshold >= 1 || (threshold >= 0 && !(boxes[i].area > 0))) continue;
    RotatedPairs pairs{{}, 0};
    const auto exceeds = [&](uint32_t, double iou) {
      return static_cast<double>(static_cast<T>(iou)) > threshold;
    };
    const RotatedBounds bounds = rotated_bounds(boxes[i], factor);
    // The bounds of boxes with a common centre all meet, but an intersection is at most the smaller
    // area. This test saves time only after a candidate has met many boxes.
    int64_t hits = 0;
    const auto areas_too_different = [&](float a, float b) {
      return a + b > 1e-30f && !(math::min(a, b) > static_cast<float>(factor) * (a + b));
    };
    const auto hit = [&](int64_t k) {
      if (++hits > 4 * kPairs && areas_too_different(kept.scaled[k], bounds.scaled)) return false;
      return add(pairs, index[k], boxes[i], boxes, exceeds);
    };
    bool suppressed = false;
    // Below 0 even disjoint boxes suppress each other: too rare for a fast path.
    for (int64_t k = 0; threshold < 0 && k < count && !suppressed; ++k) {
      suppressed = math::suppresses<T>(boxes[index[k]], boxes[i], threshold);
    }
    if (threshold >= 0) {
      suppressed = scan_bounds<2>(kept, 0, count, bounds.box, bounds.scaled, hit) ||
                   flush(pairs, boxes[i], boxes, exceeds);
    }
    if (suppressed) {
      keep[i] = 0;
      ++remaining;
    } else {
      put(kept, count, bounds);
      index[count++] = static_cast<uint32_t>(i);
    }
  }
}
