// SPDX-License-Identifier: MIT
// Included in namespace math by overlap.h, and once per instruction set by the CPU kernels: a
// function works on vectors of an instruction set only if it is compiled for it.

namespace pairwise {

template <typename V>
DETOPS_HD V larger(V a, V b) {
  return a < b ? b : a;
}

template <typename V>
DETOPS_HD V smaller(V a, V b) {
  return b < a ? b : a;
}

template <typename V>
DETOPS_HD V finite_or_zero(V x) {
  return x - x == V{} ? x : V{};
}

template <typename V>
DETOPS_HD V intersection(const math::Box<V>& a, const math::Box<V>& b) {
  const V w = smaller(a.x2, b.x2) - larger(a.x1, b.x1);
  const V h = smaller(a.y2, b.y2) - larger(a.y1, b.y1);
  return larger(V{}, w) * larger(V{}, h);
}

// The ratio of an intersection to a union.
template <typename V>
DETOPS_HD V iou(V meet, V all) {
  const V ratio = meet / all;
  return ((meet > V{}) & (ratio == ratio)) ? ratio : V{};
}

template <math::Overlap kind, typename T, typename V>
DETOPS_HD V overlap(const math::OverlapBox<V>& first, const math::OverlapBox<V>& second, T eps) {
  const math::Box<V>&a = first.box, &b = second.box;
  const V meet = pairwise::intersection(a, b), all = first.area + second.area - meet;
  const V iou = pairwise::iou(meet, all);
  if (kind == math::Overlap::kIoU) return iou;
  const V cw = larger(V{}, larger(a.x2, b.x2) - smaller(a.x1, b.x1));
  const V ch = larger(V{}, larger(a.y2, b.y2) - smaller(a.y1, b.y1));
  if (kind == math::Overlap::kGIoU) {
    const V hull = cw * ch;
    return iou - finite_or_zero((hull - all) / hull);
  }
  const V dx = T(0.5) * (a.x1 + a.x2) - T(0.5) * (b.x1 + b.x2);
  const V dy = T(0.5) * (a.y1 + a.y2) - T(0.5) * (b.y1 + b.y2);
  const V diou = iou - finite_or_zero((dx * dx + dy * dy) / (cw * cw + ch * ch + eps));
  if (kind == math::Overlap::kDIoU) return diou;
  constexpr T kScale = T(0.40528473456935108577551785283891);  // 4 / pi^2
  const V turn = first.angle - second.angle, v = kScale * (turn * turn);
  return diou - finite_or_zero(v / (T(1) - iou + v + eps) * v);
}

}  // namespace pairwise
