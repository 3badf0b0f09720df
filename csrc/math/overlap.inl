// SPDX-License-Identifier: MIT
// See host_device.h.

namespace pairwise {

template <typename V>
DETOPS_HD V finite_or_zero(V x) {
  return x - x == V{} ? x : V{};
}

template <typename C, typename V>
DETOPS_HD V where(C condition, V x) {
  return condition ? x : V{};
}

template <typename V>
DETOPS_HD V intersection(const math::Box<V>& a, const math::Box<V>& b) {
  const V w = min(a.x2, b.x2) - max(a.x1, b.x1);
  const V h = min(a.y2, b.y2) - max(a.y1, b.y1);
  return max(V{}, w) * max(V{}, h);
}

// Returns the ratio of an intersection to a union, or to the area of a box.
template <typename V>
DETOPS_HD V iou(V inter, V denominator) {
  // Most pairs are disjoint, and a comparison costs less than a division.
  if constexpr (std::is_arithmetic_v<V>) {
    if (!(inter > V{})) return V{};
  }
  const V ratio = inter / denominator;
  return where((inter > V{}) & (ratio == ratio), ratio);
}

// Returns NaN if a coordinate is NaN or infinite, otherwise 0.
template <typename V>
DETOPS_HD V nan_if_not_finite(const math::Box<V>& b) {
  return (b.x1 - b.x1) + (b.y1 - b.y1) + (b.x2 - b.x2) + (b.y2 - b.y2);
}

// Returns the constant that is added to the denominators of losses, and to the squared diagonal
// with or without `loss`. The denominator of alpha always gets eps.
template <math::Overlap kind, bool loss, typename T>
DETOPS_HD T denominator_eps(T eps) {
  return loss && kind == math::Overlap::kCIoU ? T(1e-7) : eps;
}

constexpr double kAspectScale = 0.40528473456935108577551785283891;  // 4 / pi^2

template <math::Overlap kind, typename T, bool loss = false, typename V>
DETOPS_HD V overlap(const math::OverlapBox<V>& first, const math::OverlapBox<V>& second, T eps) {
  const T added_eps = denominator_eps<kind, loss>(eps);
  const math::Box<V>&a = first.box, &b = second.box;
  const V inter = pairwise::intersection(a, b);
  if (kind == math::Overlap::kIoF) return pairwise::iou(inter, first.area);
  const V union_area = first.area + second.area - inter;
  const V iou = pairwise::iou(inter, loss ? union_area + added_eps : union_area);
  if (kind == math::Overlap::kIoU) return iou;
  V cw = max(a.x2, b.x2) - min(a.x1, b.x1);
  V ch = max(a.y2, b.y2) - min(a.y1, b.y1);
  if (!loss) cw = max(V{}, cw), ch = max(V{}, ch);
  if (kind == math::Overlap::kGIoU) {
    const V hull = cw * ch;
    return iou - finite_or_zero((hull - union_area) / (loss ? hull + added_eps : hull));
  }
  const V dx = T(0.5) * (a.x1 + a.x2) - T(0.5) * (b.x1 + b.x2);
  const V dy = T(0.5) * (a.y1 + a.y2) - T(0.5) * (b.y1 + b.y2);
  const V diou = iou - finite_or_zero((dx * dx + dy * dy) / (cw * cw + ch * ch + added_eps));
  if (kind == math::Overlap::kDIoU) return diou;
  const V angle_diff = first.angle - second.angle, v = T(kAspectScale) * (angle_diff * angle_diff);
  return diou - finite_or_zero(v / (T(1) - iou + v + eps) * v);
}

// d max(a, b) / da. A tie gives half of the gradient to each argument, as in torch.maximum.
template <typename T, typename V>
DETOPS_HD V max_slope(V a, V b) {
  return where(a > b, V{} + T(1)) + where(a == b, V{} + T(0.5));
}

// Along one axis, the width of the intersection is min(a2, b2) - max(a1, b1), and that of the hull
// is max(a2, b2) - min(a1, b1). `inner` and `outer` are their gradients.
template <typename T, typename V>
DETOPS_HD void side_gradients(V a1, V a2, V b1, V b2, V inner, V outer, V& da1, V& da2, V& db1,
                              V& db2) {
  const V low = max_slope<T>(a1, b1), high = max_slope<T>(a2, b2);
  da1 -= inner * low + outer * (T(1) - low);
  db1 -= inner * (T(1) - low) + outer * low;
  da2 += inner * (T(1) - high) + outer * high;
  db2 += inner * high + outer * (T(1) - high);
}

template <typename C, typename V>
DETOPS_HD void area_gradient(const math::Box<V>& b, C valid, V grad, math::Box<V>& db) {
  const V to_width = where(valid, grad * (b.y2 - b.y1));
  const V to_height = where(valid, grad * (b.x2 - b.x1));
  db.x1 -= to_width, db.x2 += to_width, db.y1 -= to_height, db.y2 += to_height;
}

// Adds the gradient of atan(width / height).
template <typename V>
DETOPS_HD void angle_gradient(const math::Box<V>& b, V grad, math::Box<V>& db) {
  const V w = b.x2 - b.x1, h = b.y2 - b.y1, square = w * w + h * h;
  const auto valid = (square > V{}) & (square - square == V{});
  const V to_width = where(valid, grad * h / square), to_height = where(valid, -grad * w / square);
  db.x1 -= to_width, db.x2 += to_width, db.y1 -= to_height, db.y2 += to_height;
}

// Adds grad * d overlap(a, b) / da to da, and grad * d overlap(a, b) / db to db.
// With r = I / U: dr = (dI (1 + r) - r (d area_a + d area_b)) / U.
// With r = I / A: dr = (dI - r d area_a) / A.
template <math::Overlap kind, typename T, bool loss = false, typename V>
DETOPS_HD void overlap_gradient(const math::OverlapBox<V>& first, const math::OverlapBox<V>& second,
                                T eps, V grad, math::Box<V>& da, math::Box<V>& db) {
  const T added_eps = denominator_eps<kind, loss>(eps);
  const math::Box<V>&a = first.box, &b = second.box;
  const V w = min(a.x2, b.x2) - max(a.x1, b.x1);
  const V h = min(a.y2, b.y2) - max(a.y1, b.y1);
  const V inter = max(V{}, w) * max(V{}, h);
  constexpr bool kOfFirst = kind == math::Overlap::kIoF;
  const V base = kOfFirst ? first.area : first.area + second.area - inter;
  const V denominator = loss ? base + added_eps : base;
  const auto finite = base - base == V{};
  // The gradient of the ratio is 0 if the boxes are disjoint, or if the ratio is defined as 0: the
  // union, or area, is not positive and finite.
  const auto intersects = (w > V{}) & (h > V{});
  const auto valid_ratio = intersects & finite & (base > V{});
  const V ratio = where(valid_ratio, inter / denominator);
  const V to_inter =
      where(valid_ratio, kOfFirst ? grad / denominator : grad / denominator * (T(1) + ratio));
  // Gradients of the sides of the intersection and of the hull, and of the areas of the two boxes.
  V to_w = where(valid_ratio, to_inter * h), to_h = where(valid_ratio, to_inter * w), to_cw{},
    to_ch{};
  V to_area = where(valid_ratio, -grad / denominator * ratio);
  const V cw = max(a.x2, b.x2) - min(a.x1, b.x1);
  const V ch = max(a.y2, b.y2) - min(a.y1, b.y1);
  const auto valid_hull = (cw >= V{}) & (ch >= V{});
  if (kind == math::Overlap::kGIoU) {
    // (C - U) / C = 1 - U / C, or with eps 1 - (U + eps) / (C + eps).
    const V hull = cw * ch, hull_denominator = loss ? hull + added_eps : hull;
    const V union_ratio = denominator / hull_denominator, to_union = grad / hull_denominator;
    const auto valid = loss ? (union_ratio - union_ratio == V{}) & (to_union - to_union == V{})
                            : valid_hull & (hull > V{}) & (hull - hull == V{}) & finite;
    to_cw = where(valid, -grad * union_ratio * (ch / hull_denominator));
    to_ch = where(valid, -grad * union_ratio * (cw / hull_denominator));
    to_area += where(valid & finite, to_union);
    to_w -= where(valid & intersects, to_union * h);
    to_h -= where(valid & intersects, to_union * w);
  }
  if (kind == math::Overlap::kDIoU || kind == math::Overlap::kCIoU) {
    const V dx = T(0.5) * (a.x1 + a.x2) - T(0.5) * (b.x1 + b.x2);
    const V dy = T(0.5) * (a.y1 + a.y2) - T(0.5) * (b.y1 + b.y2);
    const V diagonal = cw * cw + ch * ch + added_eps, distance = dx * dx + dy * dy;
    auto valid = (diagonal > V{}) & (diagonal - diagonal == V{}) & (distance - distance == V{});
    if (!loss) valid = valid & valid_hull;
    const V to_distance = -grad / diagonal;
    const V to_x = where(valid, to_distance * dx), to_y = where(valid, to_distance * dy);
    da.x1 += to_x, da.x2 += to_x, da.y1 += to_y, da.y2 += to_y;
    db.x1 -= to_x, db.x2 -= to_x, db.y1 -= to_y, db.y2 -= to_y;
    to_cw = where(valid, T(-2) * to_distance * (distance / diagonal) * cw);
    to_ch = where(valid, T(-2) * to_distance * (distance / diagonal) * ch);
    if (kind == math::Overlap::kCIoU) {
      const V angle_diff = first.angle - second.angle,
              v = T(kAspectScale) * angle_diff * angle_diff;
      const V alpha = finite_or_zero(v / (T(1) - ratio + v + eps));
      const V to_angle = where(valid, T(-2) * T(kAspectScale) * grad * alpha * angle_diff);
      angle_gradient(a, to_angle, da);
      angle_gradient(b, -to_angle, db);
    }
  }
  side_gradients<T>(a.x1, a.x2, b.x1, b.x2, to_w, to_cw, da.x1, da.x2, db.x1, db.x2);
  side_gradients<T>(a.y1, a.y2, b.y1, b.y2, to_h, to_ch, da.y1, da.y2, db.y1, db.y2);
  area_gradient(a, finite, to_area, da);
  if (!kOfFirst) area_gradient(b, finite, to_area, db);
}

template <math::Overlap kind, typename T, typename V>
DETOPS_HD V overlap_loss(const math::OverlapBox<V>& a, const math::OverlapBox<V>& b, T eps) {
  return T(1) - overlap<kind, T, true>(a, b, eps) +
         (nan_if_not_finite(a.box) + nan_if_not_finite(b.box));
}

// Replaces an overflowing derivative by 0: an inverted box of 1e30 must not end a training run.
template <typename V>
DETOPS_HD math::Box<V> finite_or_zero(const math::Box<V>& b) {
  return {finite_or_zero(b.x1), finite_or_zero(b.y1), finite_or_zero(b.x2), finite_or_zero(b.y2)};
}

template <typename V>
DETOPS_HD math::Box<V> shifted(const math::Box<V>& b, V by) {
  return {b.x1 + by, b.y1 + by, b.x2 + by, b.y2 + by};
}

template <math::Overlap kind, typename T, typename V>
DETOPS_HD void overlap_loss_gradient(const math::OverlapBox<V>& a, const math::OverlapBox<V>& b,
                                     T eps, V grad, math::Box<V>& da, math::Box<V>& db) {
  da = db = math::Box<V>{};
  overlap_gradient<kind, T, true>(a, b, eps, -grad, da, db);
  const V nan_or_zero = nan_if_not_finite(a.box) + nan_if_not_finite(b.box);
  da = shifted(finite_or_zero(da), nan_or_zero);
  db = shifted(finite_or_zero(db), nan_or_zero);
}

}  // namespace pairwise
