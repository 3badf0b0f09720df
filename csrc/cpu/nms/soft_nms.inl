// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "decay.inl"

// One selection: lowers the scores of what overlaps the selected box, drops what falls too low, and
// finds the next highest score, all in one pass.
template <math::Decay kind, typename T>
SoftNmsNext soft_nms_rescale(const SoftNmsList<T>& list, const math::OverlapBox<T>& selected,
                             const math::SoftNmsRule<T>& rule) {
  using Index = lane_index_t<T>;
  const math::Box<Vector<T>> a{splat(selected.box.x1), splat(selected.box.y1),
                               splat(selected.box.x2), splat(selected.box.y2)};
  const Vector<T> area = splat(selected.area);
  const Vector<T> dropped = splat(static_cast<T>(__builtin_nanf("")));
  // Below a threshold of zero even boxes that do not meet lose their scores.
  const bool everywhere = kind == math::Decay::kNaive && rule.threshold < 0;
  Vector<T> most = splat(static_cast<T>(-__builtin_inff()));
  Vector<Index> where{}, at{}, left{};
  for (int64_t i = 0; i < kLanes<T>; ++i) at[i] = static_cast<Index>(i);
  for (int64_t j = 0; j < list.count; j += kLanes<T>) {
    const math::Box<Vector<T>> b{load(list.x1 + j), load(list.y1 + j), load(list.x2 + j),
                                 load(list.y2 + j)};
    const Vector<T> meet = pairwise::intersection(a, b);
    Vector<T> score = load(list.score + j);
    if (everywhere || greater_bits(meet, Vector<T>{}) != 0) {
      const Vector<T> iou = pairwise::iou(meet, area + load(list.area + j) - meet);
      score = decay::decayed<kind, T>(score, iou, rule);
      score = score >= rule.min_score ? score : dropped;
      store(list.score + j, score);
    }
    left -= score == score;
    where = score > most ? at : where;
    most = score > most ? score : most;
    at += static_cast<Index>(kLanes<T>);
  }
  SoftNmsNext next{-1, 0};
  T best = static_cast<T>(-__builtin_inff());
  for (int64_t i = 0; i < kLanes<T>; ++i) {
    next.left += left[i];
    if (most[i] > best || (most[i] == best && next.best >= 0 && where[i] < next.best)) {
      best = most[i];
      next.best = where[i];
    }
  }
  return next;
}
