// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../../math/overlap.inl"
#include "../simd/bounds.inl"
#include "../simd/functions.inl"

template <typename T>
DETOPS_INLINE math::OverlapBox<Vector<T>> load_boxes(const BoxColumns<T>& b, int64_t j) {
  return {load_box(b, j), load(b.area + j), load(b.extra + j)};
}

template <typename T>
DETOPS_INLINE math::OverlapBox<Vector<T>> splat_box(const math::OverlapBox<T>& a) {
  return {splat_box(a.box), splat(a.area), splat(a.angle)};
}

// Computes a row of the matrix: one box against `count` others.
template <math::Overlap kind, typename T>
void overlap_row(const math::OverlapBox<T>& box, const BoxColumns<T>& others, int64_t count, T eps,
                 T* row) {
  const math::OverlapBox<Vector<T>> a = splat_box(box);
  for (int64_t j = 0; j < count; j += kLanes<T>) {
    const Vector<T> overlaps = pairwise::overlap<kind, T>(a, load_boxes(others, j), eps);
    store_first(row + j, overlaps, count - j);
  }
}

// Returns the first index of the largest IoU of one box with `count` >= 1 others. Sets `best` to
// that IoU.
template <typename T>
int64_t overlap_best(const math::OverlapBox<T>& box, const BoxColumns<T>& others, int64_t count,
                     T& best) {
  const math::OverlapBox<Vector<T>> a = splat_box(box);
  LaneArgmax<T> largest = argmax_above(T(-1));
  // Empty boxes follow the last one. Their IoU of 0 comes too late to be the first maximum.
  for (int64_t j = 0; j < count; j += kLanes<T>) {
    update<T>(largest, pairwise::overlap<math::Overlap::kIoU, T>(a, load_boxes(others, j), T(0)));
    largest.next_index += static_cast<lane_index_t<T>>(kLanes<T>);
  }
  return reduce_argmax(largest, best);
}

// kPairs boxes, with one column per coordinate. Elements past the last pair are stale, and their
// results are discarded.
constexpr int64_t kPairs = 64;
template <typename T>
struct BoxBlock {
  T coords[4][kPairs];
};

template <typename T>
DETOPS_INLINE void to_columns(const T* boxes, int64_t count, BoxBlock<T>& block) {
  for (int64_t i = 0; i < count; ++i) {
    DETOPS_UNROLL for (int64_t c = 0; c < 4; ++c) block.coords[c][i] = boxes[4 * i + c];
  }
}

template <typename T>
DETOPS_INLINE void from_columns(const BoxBlock<T>& block, int64_t count, T* boxes) {
  for (int64_t i = 0; i < count; ++i) {
    DETOPS_UNROLL for (int64_t c = 0; c < 4; ++c) boxes[4 * i + c] = block.coords[c][i];
  }
}

template <math::Overlap kind, typename T>
DETOPS_INLINE math::OverlapBox<Vector<T>> load_boxes(const BoxBlock<T>& block, int64_t i) {
  const Vector<T> x1 = load(block.coords[0] + i), y1 = load(block.coords[1] + i);
  const Vector<T> x2 = load(block.coords[2] + i), y2 = load(block.coords[3] + i);
  const Vector<T> w = x2 - x1, h = y2 - y1;
  Vector<T> angle{};
  if (kind == math::Overlap::kCIoU) angle = pairwise::finite_or_zero(arctangent(w / h));
  return {{x1, y1, x2, y2}, w * h, angle};
}

template <typename T>
DETOPS_INLINE void store_box(BoxBlock<T>& block, int64_t i, const math::Box<Vector<T>>& box) {
  store(block.coords[0] + i, box.x1);
  store(block.coords[1] + i, box.y1);
  store(block.coords[2] + i, box.x2);
  store(block.coords[3] + i, box.y2);
}

// Computes the overlaps of the pairs (a[i], b[i]), both [count, 4], or their losses.
template <math::Overlap kind, bool loss, typename T>
void box_pairs_forward(const T* a, const T* b, int64_t count, T eps, T* values) {
  BoxBlock<T> first{}, second{};
  for (int64_t i = 0; i < count; i += kPairs) {
    const int64_t n = count - i < kPairs ? count - i : kPairs;
    to_columns(a + 4 * i, n, first);
    to_columns(b + 4 * i, n, second);
    for (int64_t j = 0; j < n; j += kLanes<T>) {
      const auto one = load_boxes<kind>(first, j), other = load_boxes<kind>(second, j);
      const Vector<T> value = loss ? pairwise::overlap_loss<kind, T>(one, other, eps)
                                   : pairwise::overlap<kind, T>(one, other, eps);
      store_first(values + i + j, value, n - j);
    }
  }
}

// Computes the gradients of box_pairs_forward.
template <math::Overlap kind, bool loss, typename T>
void box_pairs_backward(const T* grad, const T* a, const T* b, int64_t count, T eps, T* grad_a,
                        T* grad_b) {
  BoxBlock<T> first{}, second{}, to_first, to_second;
  for (int64_t i = 0; i < count; i += kPairs) {
    const int64_t n = count - i < kPairs ? count - i : kPairs;
    to_columns(a + 4 * i, n, first);
    to_columns(b + 4 * i, n, second);
    for (int64_t j = 0; j < n; j += kLanes<T>) {
      const auto one = load_boxes<kind>(first, j), other = load_boxes<kind>(second, j);
      const Vector<T> outer = load_first(grad + i + j, n - j);
      math::Box<Vector<T>> da{}, db{};
      if constexpr (loss) {
        pairwise::overlap_loss_gradient<kind, T>(one, other, eps, outer, da, db);
      } else {
        pairwise::overlap_gradient<kind, T>(one, other, eps, outer, da, db);
      }
      store_box(to_first, j, da);
      store_box(to_second, j, db);
    }
    from_columns(to_first, n, grad_a + 4 * i);
    from_columns(to_second, n, grad_b + 4 * i);
  }
}
