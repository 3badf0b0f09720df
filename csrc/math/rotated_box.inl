// SPDX-License-Identifier: MIT
// See host_device.h. Include this after overlap.inl.

namespace rotated {

template <typename V>
DETOPS_HD V magnitude(V x) {
  return x < V{} ? -x : x;
}

// A NaN x yields `high`.
template <typename V>
DETOPS_HD V clamp(V x, V low, V high) {
  return max(low, min(high, x));
}

// Returns whether `a` precedes `b` in a fixed order of all boxes.
template <typename V>
DETOPS_HD auto precedes(const math::RotatedBox<V>& a, const math::RotatedBox<V>& b) {
  auto first = a.y > b.y;
  first = (a.x > b.x) | ((a.x == b.x) & first);
  first = (a.sin > b.sin) | ((a.sin == b.sin) & first);
  first = (a.cos > b.cos) | ((a.cos == b.cos) & first);
  first = (a.half_h > b.half_h) | ((a.half_h == b.half_h) & first);
  return (a.half_w > b.half_w) | ((a.half_w == b.half_w) & first);
}

// Follows the line from (x, y) to (x + dx, y + dy) as far as |y| <= half_h, and integrates x,
// clamped to |x| <= half_w, over y. The result is divided by dy / 2. The line has up to three
// pieces: before, within and after the limits of the clamp. On each piece, the mean of x is the
// mean of its two ends. per_x and per_y are 1 / dx and 1 / dy. On a line parallel to an axis, where
// they can be infinite, the limits along the line may become NaN. Any position on the line is right
// then.
template <typename V>
DETOPS_HD V clamped_integral(V x, V y, V dx, V per_x, V per_y, V half_w, V half_h) {
  const V one = V{} + 1;
  const V y_low = (-half_h - y) * per_y, y_high = (half_h - y) * per_y;
  const V begin = clamp(min(y_low, y_high), V{}, one);
  const V end = clamp(max(y_low, y_high), begin, one);
  const V x_low = (-half_w - x) * per_x, x_high = (half_w - x) * per_x;
  const V enter = clamp(min(x_low, x_high), begin, end);
  const V leave = clamp(max(x_low, x_high), enter, end);
  const V from = clamp(x + begin * dx, -half_w, half_w);
  const V to = clamp(x + end * dx, -half_w, half_w);
  return from * ((enter - begin) + (leave - begin)) + to * ((end - enter) + (end - leave));
}

// Area of the intersection. In its own frame, one box is |x| <= w / 2, |y| <= h / 2. By Green's
// theorem, the area that it cuts from the other box is the integral over y, along the sides of the
// other box, of x clamped to the first box. This needs no sorted vertices and no distinction of
// cases, and the result is continuous: it never jumps when a box changes slightly. The choice of
// the frame does not depend on the order of the arguments, so neither does the result.
template <typename V>
DETOPS_HD V intersection(const math::RotatedBox<V>& first, const math::RotatedBox<V>& second) {
  const auto swap = precedes(second, first);
  const V a_cos = swap ? second.cos : first.cos, b_cos = swap ? first.cos : second.cos;
  const V a_sin = swap ? second.sin : first.sin, b_sin = swap ? first.sin : second.sin;
  const V a_w = swap ? second.half_w : first.half_w, b_w = swap ? first.half_w : second.half_w;
  const V a_h = swap ? second.half_h : first.half_h, b_h = swap ? first.half_h : second.half_h;
  // The centres are subtracted first, so that results are as exact far from the origin as near it.
  const V dx = swap ? first.x - second.x : second.x - first.x;
  const V dy = swap ? first.y - second.y : second.y - first.y;
  const V cos = a_cos * b_cos + a_sin * b_sin, sin = b_sin * a_cos - b_cos * a_sin;

  // The centre and half sides of b in the frame of a, and the offset of the centres in that of b.
  const V x = dx * a_cos - dy * a_sin, y = dx * a_sin + dy * a_cos;
  const V ux = b_w * cos, uy = -(b_w * sin), vx = b_h * sin, vy = b_h * cos;
  const V qx = dx * b_cos - dy * b_sin, qy = dx * b_sin + dy * b_cos;
  // If a side of one box separates the two, the area is exactly 0, not a rounding error.
  const V c = magnitude(cos), s = magnitude(sin);
  const auto overlaps_x = magnitude(x) < a_w + magnitude(ux) + magnitude(vx);
  const auto overlaps_y = magnitude(y) < a_h + magnitude(uy) + magnitude(vy);
  const auto overlaps_w = magnitude(qx) < b_w + a_w * c + a_h * s;
  const auto overlaps_h = magnitude(qy) < b_h + a_w * s + a_h * c;
  const auto overlaps = overlaps_x & overlaps_y & overlaps_w & overlaps_h;

  const V per_ux = 0.5 / ux, per_uy = 0.5 / uy, per_vx = 0.5 / vx, per_vy = 0.5 / vy;
  const V along_u = clamped_integral(x - ux - vx, y - uy - vy, 2 * ux, per_ux, per_uy, a_w, a_h) -
                    clamped_integral(x - ux + vx, y - uy + vy, 2 * ux, per_ux, per_uy, a_w, a_h);
  const V along_v = clamped_integral(x + ux - vx, y + uy - vy, 2 * vx, per_vx, per_vy, a_w, a_h) -
                    clamped_integral(x - ux - vx, y - uy - vy, 2 * vx, per_vx, per_vy, a_w, a_h);
  const V area = min(along_u * uy + along_v * vy, min(first.area, second.area));
  return overlaps ? max(V{}, area) : V{};
}

// Returns the denominator of an overlap; NaN if an element of either box is not finite.
template <typename V>
DETOPS_HD V base_area(const math::RotatedBox<V>& a, const math::RotatedBox<V>& b, V inter,
                      math::Base base) {
  return base == math::Base::kUnion ? a.area + b.area - inter : a.area + (b.area - b.area);
}

// At most 1; NaN if the base is not positive and finite.
template <typename V>
DETOPS_HD V iou(const math::RotatedBox<V>& a, const math::RotatedBox<V>& b,
                math::Base base = math::Base::kUnion) {
  const V inter = intersection(a, b);
  return min(inter / base_area(a, b, inter, base), V{} + 1);
}

}  // namespace rotated
