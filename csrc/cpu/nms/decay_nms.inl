// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

template <typename V>
DETOPS_INLINE V power_of_two(V shifted) {
  using T = std::remove_reference_t<decltype(shifted[0])>;
  using Bits = Vector<lane_index_t<T>>;
  using Constants = math::ExpConstants<T>;
  const Bits n = (Bits)shifted - (Bits)splat(T(Constants::kRounder));
  return (V)((n + Constants::kBias) << Constants::kFraction);
}

#include "../../math/overlap.inl"
//
#include "../../math/decay.inl"
//
#include "../simd/bounds.inl"

// Performs one step of soft NMS in one pass over the first `count` boxes: decays the scores of
// boxes that overlap the selected one and drops boxes below the minimum score. Returns the first
// index of the highest score, or -1 if no box is left. Sets `remaining` to the number of boxes that
// are left.
template <math::Decay kind, typename T>
int64_t soft_nms_rescale(const BoxColumns<T>& list, int64_t count,
                         const math::OverlapBox<T>& selected, const math::SoftNmsRule<T>& rule,
                         int64_t& remaining) {
  const math::Box<Vector<T>> a = splat_box(selected.box);
  const Vector<T> area = splat(selected.area);
  const Vector<T> dropped = splat(static_cast<T>(__builtin_nanf("")));
  // Below a threshold of 0 the naive rule decays even the scores of disjoint boxes.
  const bool decay_all = kind == math::Decay::kNaive && rule.threshold < 0;
  LaneArgmax<T> best = argmax_above(static_cast<T>(-__builtin_inff()));
  Vector<lane_index_t<T>> remaining_lanes{};
  for (int64_t j = 0; j < count; j += kLanes<T>) {
    const Vector<T> inter = pairwise::intersection(a, load_box(list, j));
    Vector<T> score = load(list.extra + j);
    if (decay_all || greater_bits(inter, Vector<T>{}) != 0) {
      const Vector<T> iou = pairwise::iou(inter, area + load(list.area + j) - inter);
      score = decay::decayed<kind, T>(score, iou, rule);
      score = score >= rule.min_score ? score : dropped;
      store(list.extra + j, score);
    }
    remaining_lanes -= score == score;
    update<T>(best, score);
    best.next_index += static_cast<lane_index_t<T>>(kLanes<T>);
  }
  remaining = sum_lanes<lane_index_t<T>>(remaining_lanes);
  T highest = 0;
  return reduce_argmax(best, highest);
}

// Compares box j with boxes [begin, end). Updates its largest IoU and its largest
// math::decay::matrix_weight.
template <math::Decay kind, typename T>
void matrix_nms_compare(const BoxColumns<T>& list, int64_t begin, int64_t end, int64_t j,
                        T& largest_iou, T& largest_weight) {
  using Index = lane_index_t<T>;
  const math::Box<Vector<T>> a = splat_box(box_at(list, j));
  const Vector<T> area = splat(list.area[j]);
  Vector<T> max_iou = splat(largest_iou), max_weight = splat(largest_weight);
  for (int64_t i = begin; i < end; i += kLanes<T>) {
    Vector<T> inter = pairwise::intersection(load_box(list, i), a);
    // Excludes the lanes past the last box.
    if (end - i < kLanes<T>) {
      inter = lane_indices<T>() < static_cast<Index>(end - i) ? inter : Vector<T>{};
    }
    // Disjoint boxes change neither maximum.
    if (greater_bits(inter, Vector<T>{}) == 0) continue;
    const Vector<T> iou = pairwise::iou(inter, load(list.area + i) + area - inter);
    max_iou = max(max_iou, iou);
    const Vector<T> other = decay::matrix_weight<kind, T>(iou, load(list.extra + i));
    max_weight = ((other > max_weight) & (iou > Vector<T>{})) ? other : max_weight;
  }
  largest_iou = reduce_lanes<T>(max_iou, max<Vector<T>>, AllLanes<T>())[0];
  largest_weight = reduce_lanes<T>(max_weight, max<Vector<T>>, AllLanes<T>())[0];
}
