// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "decay.inl"

// Adds what the boxes [begin, end) say of box j.
template <math::Decay kind, typename T>
void matrix_nms_meet(const MatrixNmsList<T>& list, int64_t begin, int64_t end, int64_t j,
                     MatrixNmsState<T>& state) {
  using Index = lane_index_t<T>;
  const math::Box<Vector<T>> a{splat(list.x1[j]), splat(list.y1[j]), splat(list.x2[j]),
                               splat(list.y2[j])};
  const Vector<T> area = splat(list.area[j]);
  Vector<T> most = splat(state.most), weight = splat(state.weight);
  Vector<Index> lane{};
  for (int64_t i = 0; i < kLanes<T>; ++i) lane[i] = static_cast<Index>(i);
  for (int64_t i = begin; i < end; i += kLanes<T>) {
    const math::Box<Vector<T>> b{load(list.x1 + i), load(list.y1 + i), load(list.x2 + i),
                                 load(list.y2 + i)};
    Vector<T> meet = pairwise::intersection(b, a);
    // What lies behind the last box meets nothing.
    if (end - i < kLanes<T>) meet = lane < static_cast<Index>(end - i) ? meet : Vector<T>{};
    // Boxes that do not meet say nothing.
    if (greater_bits(meet, Vector<T>{}) == 0) continue;
    const Vector<T> iou = pairwise::iou(meet, load(list.area + i) + area - meet);
    most = vector_max(most, iou);
    const Vector<T> other = decay::matrix_weight<kind, T>(iou, load(list.term + i));
    weight = ((other > weight) & (iou > Vector<T>{})) ? other : weight;
  }
  for (int64_t i = 0; i < kLanes<T>; ++i) {
    state.most = math::max(state.most, most[i]);
    state.weight = math::max(state.weight, weight[i]);
  }
}
