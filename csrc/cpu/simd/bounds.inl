// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

// Calls hit(k) for each box k in [begin, end) of a list whose intersection with `box` exceeds the
// sum of the scaled areas, until it returns true. Returns whether it did.
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
      const Vector<T> w = min(load(list.x2 + k), x2) - max(load(list.x1 + k), x1);
      const Vector<T> h = min(load(list.y2 + k), y2) - max(load(list.y1 + k), y1);
      // One clamp is enough: the sum of scaled areas is negative only if every box is to pass.
      bits |= uint64_t(greater_bits(max(Vector<T>{}, w) * h, load(list.scaled + k) + scaled))
              << (v * kWidth);
    }
    if (end - j < kVectors * kWidth) bits &= (uint64_t(1) << (end - j)) - 1;
    for (; bits; bits &= bits - 1) {
      if (hit(j + __builtin_ctzll(bits))) return true;
    }
  }
  return false;
}

template <typename T>
DETOPS_INLINE math::Box<Vector<T>> load_box(const BoxColumns<T>& b, int64_t i) {
  return {load(b.x1 + i), load(b.y1 + i), load(b.x2 + i), load(b.y2 + i)};
}

template <typename T>
DETOPS_INLINE math::Box<Vector<T>> splat_box(const math::Box<T>& b) {
  return {splat(b.x1), splat(b.y1), splat(b.x2), splat(b.y2)};
}

// The largest element of each lane and its first index, or -1. `next_index` holds the indices of
// the next elements.
template <typename T>
struct LaneArgmax {
  Vector<T> value;
  Vector<lane_index_t<T>> index, next_index;
};

template <typename T>
DETOPS_INLINE LaneArgmax<T> argmax_above(T least) {
  return {splat(least), Vector<lane_index_t<T>>{} - 1, lane_indices<T>()};
}

template <typename T>
DETOPS_INLINE void update(LaneArgmax<T>& best, Vector<T> x) {
  best.index = x > best.value ? best.next_index : best.index;
  best.value = x > best.value ? x : best.value;
}

// Returns the first index of the largest element of all lanes, or -1. Sets `value` to that element.
template <typename T>
DETOPS_INLINE int64_t reduce_argmax(const LaneArgmax<T>& best, T& value) {
  using Index = lane_index_t<T>;
  const Vector<T> largest = reduce_lanes<T>(best.value, max<Vector<T>>, AllLanes<T>());
  // A lane without an element above the initial one has index -1.
  const Vector<Index> past_end = Vector<Index>{} + std::numeric_limits<Index>::max();
  const Vector<Index> index = best.value == largest ? best.index : past_end;
  const Vector<Index> first = reduce_lanes<Index>(index, min<Vector<Index>>, AllLanes<T>());
  value = largest[0];
  return first[0];
}
