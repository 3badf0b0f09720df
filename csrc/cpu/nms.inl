// SPDX-License-Identifier: MIT
// Included once per instruction set; see isa.h.
//
// Each candidate, in score order, is compared with all boxes kept so far, a block of vectors at a
// time, leaving at the first hit: O(N K) with K kept boxes, no N x N mask, no indirect loads.

// IoU > threshold decided without a division, exactly as if the quotient had been rounded to
// float32. Let t be the largest float <= threshold and m the midpoint of t and its successor. The
// rounded quotient exceeds the threshold if and only if I / U > m; a quotient of two 24-bit numbers
// is never equal to m, and both I and m * U are exact in double.
struct ExactTest {
  double midpoint;
  double threshold;

  DETOPS_INLINE bool decide(const ExactTest& test, float overlap, float all) {
    return double(overlap) > test.midpoint * double(all);
  }
  // No wider type to be exact in: divide.
  DETOPS_INLINE bool decide(const ExactTest& test, double overlap, double all) {
    return overlap / all > test.threshold;
  }
};

DETOPS_INLINE double rounding_midpoint(double threshold) {
  float low = static_cast<float>(threshold);
  uint32_t bits = math::float_bits(low);
  if (double(low) > threshold) low = math::bits_float(--bits);
  return 0.5 * (double(low) + double(math::bits_float(bits + 1)));
}

template <typename T>
void nms_plain(const NmsSegment<T>& s) {
  for (int64_t i = 0; i < s.count; ++i) {
    const math::Box<T> candidate{s.x1[i], s.y1[i], s.x2[i], s.y2[i]};
    s.keep[i] = 1;
    for (int64_t j = 0; j < i && s.keep[i]; ++j) {
      const math::Box<T> kept{s.x1[j], s.y1[j], s.x2[j], s.y2[j]};
      s.keep[i] = !(s.keep[j] && math::suppresses(kept, math::area(kept), candidate,
                                                  math::area(candidate), s.threshold));
    }
  }
}

template <typename T>
void nms(const NmsSegment<T>& s) {
  // An IoU is at most 1.
  if (s.threshold >= 1) {
    for (int64_t i = 0; i < s.count; ++i) s.keep[i] = 1;
    return;
  }
  // Below zero even boxes that do not meet suppress each other, and near the smallest numbers
  // quotients lose bits: rare, and not worth a fast path.
  if (s.threshold < 0 || (s.threshold > 0 && s.threshold < 1e-30)) return nms_plain(s);

  const ExactTest test{rounding_midpoint(s.threshold), s.threshold};
  // I > thr U is I > thr / (1 + thr) (area_a + area_b). Scaled areas, rounded a little down, make
  // that a filter of one addition and one comparison; what passes takes the exact test.
  const T scale = static_cast<T>(s.threshold / (1 + s.threshold) * (1 - 1e-6));
  constexpr T kInfinity = static_cast<T>(__builtin_inff());
  const int64_t stride = s.count + kNmsPadding;
  T* x1 = s.scratch;
  T* y1 = x1 + stride;
  T* x2 = y1 + stride;
  T* y2 = x2 + stride;
  T* scaled = y2 + stride;
  // An infinite scaled area never passes the filter: this is what makes reading past the end safe.
  for (int64_t i = 0; i < kNmsPadding; ++i) {
    x1[i] = y1[i] = x2[i] = y2[i] = 0;
    scaled[i] = kInfinity;
  }

  constexpr int64_t kWidth = kLanes<T>;
  constexpr int64_t kBlock = 2 * kWidth;
  int64_t kept = 0;
  for (int64_t i = 0; i < s.count; ++i) {
    const math::Box<T> box{s.x1[i], s.y1[i], s.x2[i], s.y2[i]};
    const T area = math::area(box);
    s.keep[i] = 1;
    // NaN, infinite and non-positive areas meet nothing: kept, and never looked at again.
    if (!(area > 0 && area < kInfinity)) continue;
    // Scaling a subnormal number would round it up.
    const T scaled_area = area < T(1e-30) ? T(0) : area * scale;
    const Vector<T> bx1 = splat(box.x1), by1 = splat(box.y1);
    const Vector<T> bx2 = splat(box.x2), by2 = splat(box.y2), barea = splat(scaled_area);
    for (int64_t j = 0; j < kept && s.keep[i]; j += kBlock) {
      uint32_t bits = 0;
      for (int64_t v = 0; v < 2; ++v) {
        const int64_t k = j + v * kWidth;
        const Vector<T> w = vector_min(load(x2 + k), bx2) - vector_max(load(x1 + k), bx1);
        const Vector<T> h = vector_min(load(y2 + k), by2) - vector_max(load(y1 + k), by1);
        const Vector<T> overlap = vector_max(Vector<T>{}, w) * vector_max(Vector<T>{}, h);
        bits |= lane_bits<T>(overlap > load(scaled + k) + barea) << (v * kWidth);
      }
      for (; bits; bits &= bits - 1) {
        const int64_t k = j + __builtin_ctz(bits);
        const math::Box<T> other{x1[k], y1[k], x2[k], y2[k]};
        const T overlap = math::intersection(other, box);
        if (ExactTest::decide(test, overlap, math::area(other) + area - overlap)) {
          s.keep[i] = 0;
          break;
        }
      }
    }
    if (!s.keep[i]) continue;
    x1[kept] = box.x1;
    y1[kept] = box.y1;
    x2[kept] = box.x2;
    y2[kept] = box.y2;
    scaled[kept] = scaled_area;
    ++kept;
    // The padding moves on with the end.
    x1[kept + kNmsPadding - 1] = y1[kept + kNmsPadding - 1] = 0;
    x2[kept + kNmsPadding - 1] = y2[kept + kNmsPadding - 1] = 0;
    scaled[kept + kNmsPadding - 1] = kInfinity;
  }
}
