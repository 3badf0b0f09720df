// SPDX-License-Identifier: MIT
#pragma once

#include "overlap.h"

// Rotated boxes: (cx, cy, w, h, angle) in pixels and degrees, counter-clockwise in an image whose y
// axis points down. The side w runs along (cos, -sin), the side h along (sin, cos).
//
// Everything is computed in double, with operations that every device and instruction set rounds
// alike, so an overlap has the same bits everywhere.
namespace detops::math {

// A box and the values that depend on it alone. V is double or, in CPU kernels, a vector of double.
template <typename V>
struct RotatedBox {
  V x, y;  // of the centre
  V half_w, half_h;
  V cos, sin;
  V area;    // 0 if a side is not positive; NaN if an element is not finite
  V unused;  // pads a box to one cache line, and to 8 elements for square transposes
};

// The standard sine and cosine differ between host and device. Here, the reduction to at most 45
// degrees is exact, and so are quarter turns. The polynomials are Taylor series.
DETOPS_HD void sin_cos_degrees(double degrees, double& sin, double& cos) {
  if (!(degrees > -1e9 && degrees < 1e9)) degrees = ::fmod(degrees, 360.0);  // also exact
  if (degrees != degrees) {
    sin = cos = degrees;
    return;
  }
  const double quarters = ::floor(degrees / 90 + 0.5);
  const double x = (degrees - 90 * quarters) * 0.017453292519943295769, z = x * x;
  constexpr double kSine[] = {-1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880,
                              -1.0 / 5040,          1.0 / 120,        -1.0 / 6};
  constexpr double kCosine[] = {
      1.0 / 20922789888000, -1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320,
      -1.0 / 720,           1.0 / 24,           -1.0 / 2,        1.0 / 1};
  double s = kSine[0], c = kCosine[0];
  for (int i = 1; i < 7; ++i) s = s * z + kSine[i];
  for (int i = 1; i < 9; ++i) c = c * z + kCosine[i];
  s = s * z * x + x;
  const int quadrant = static_cast<int>(static_cast<int64_t>(quarters) & 3);
  sin = quadrant == 0 ? s : (quadrant == 1 ? c : (quadrant == 2 ? -s : -c));
  cos = quadrant == 0 ? c : (quadrant == 1 ? -s : (quadrant == 2 ? -c : s));
}

// `b` is (cx, cy, w, h, angle).
template <typename T>
DETOPS_HD RotatedBox<double> rotated_box(const T* b) {
  RotatedBox<double> box{};
  const double w = double(b[2]), h = double(b[3]);
  box.x = double(b[0]);
  box.y = double(b[1]);
  box.half_w = 0.5 * w;
  box.half_h = 0.5 * h;
  sin_cos_degrees(double(b[4]), box.sin, box.cos);
  box.area = w > 0 && h > 0 ? w * h : 0;
  const double sum = box.x + box.y + w + h + box.cos + box.area;
  if (!(sum - sum == 0)) box.area = sum - sum;
  return box;
}

#include "rotated_box.inl"

// The only test that decides suppression: the IoU, rounded to T, must be strictly above the
// threshold. An IoU without a value does not suppress.
template <typename T>
DETOPS_HD bool suppresses(const RotatedBox<double>& a, const RotatedBox<double>& b,
                          double threshold) {
  return static_cast<double>(static_cast<T>(rotated::iou(a, b))) > threshold;
}

// The derivative of the overlap of two rotated boxes. The intersection changes where the border of
// one box lies within the other, by the length of that part times its speed along its normal. So
// the derivative needs the two ends of the part of each side within the other box, and no corners
// of the intersection. A side that lies exactly on a side of the other box counts with half its
// length, the mean of moving it either way, so the derivative of the IoU of coinciding boxes is 0.
// It is also 0 if the boxes do not overlap or a box has no area.

// The derivative with respect to each element of a box; for the angle, per degree.
struct RotatedGradient {
  double x = 0, y = 0, w = 0, h = 0, angle = 0;
};

namespace rotated {

// The part of a side, position + s * along for s in [-1, 1], within |x| <= half_w and |y| <=
// half_h.
struct SidePart {
  double begin = -1, end = 1, weight = 1;  // weight 0: no part

  DETOPS_HD void clip(double position, double along, double half) {
    if (along == 0) {
      const double distance = abs(position) - half;
      weight = distance > 0 ? 0 : (distance == 0 ? 0.5 * weight : weight);
      return;
    }
    const double a = (-half - position) / along, b = (half - position) / along;
    begin = max(begin, min(a, b));
    end = min(end, max(a, b));
  }

  DETOPS_HD double length() const { return end > begin ? weight * (end - begin) : 0; }
};

// Returns the derivative of the intersection area with respect to the elements of b.
DETOPS_HD RotatedGradient intersection_gradient(const RotatedBox<double>& a,
                                                const RotatedBox<double>& b) {
  double cos = a.cos * b.cos + a.sin * b.sin, sin = b.sin * a.cos - b.cos * a.sin;
  // Makes quarter turns exact, so that coinciding sides are recognized.
  if (sin == 0) cos = cos < 0 ? -1 : 1;
  if (cos == 0) sin = sin < 0 ? -1 : 1;
  const double dx = b.x - a.x, dy = b.y - a.y;
  const double x = dx * a.cos - dy * a.sin, y = dx * a.sin + dy * a.cos;  // in a's frame
  RotatedGradient to;
  double to_x = 0, to_y = 0;
  // The two sides across u, the direction of w, and the two across v, the direction of h.
  for (int i = 0; i < 4; ++i) {
    const bool across_u = i < 2;
    const double sign = i % 2 == 0 ? 1 : -1;
    const double normal_x = sign * (across_u ? cos : sin),
                 normal_y = sign * (across_u ? -sin : cos);
    const double out = across_u ? b.half_w : b.half_h, half = across_u ? b.half_h : b.half_w;
    const double along_x = half * (across_u ? sin : cos), along_y = half * (across_u ? cos : -sin);
    SidePart part;
    part.clip(x + out * normal_x, along_x, a.half_w);
    part.clip(y + out * normal_y, along_y, a.half_h);
    const double length = half * part.length();
    to_x += normal_x * length;
    to_y += normal_y * length;
    (across_u ? to.w : to.h) += 0.5 * length;
    // A rotation moves point s by s * half along the normal, on sides across v the other way.
    const double moment = 0.5 * length * half * (part.begin + part.end);
    to.angle += (across_u ? sign : -sign) * moment;
  }
  to.x = to_x * a.cos + to_y * a.sin;
  to.y = to_y * a.cos - to_x * a.sin;
  to.angle *= 0.017453292519943295769;
  return to;
}

template <typename T>
DETOPS_HD void store_gradient(const RotatedGradient& area, double area_grad, double to_w,
                              double to_h, T* to) {
  to[0] = static_cast<T>(area_grad * area.x);
  to[1] = static_cast<T>(area_grad * area.y);
  to[2] = static_cast<T>(area_grad * area.w + to_w);
  to[3] = static_cast<T>(area_grad * area.h + to_h);
  to[4] = static_cast<T>(area_grad * area.angle);
}

// Writes grad times the derivatives of iou(a, b, base) with respect to a and b.
template <typename T>
DETOPS_HD void iou_gradient(const RotatedBox<double>& a, const RotatedBox<double>& b, Base base,
                            double grad, T* to_a, T* to_b) {
  const double inter = intersection(a, b);
  const double denominator = base_area(a, b, inter, base);
  if (!(inter > 0 && inter / denominator > 0)) {
    for (int i = 0; i < 5; ++i) to_a[i] = to_b[i] = T(0);
    return;
  }
  const double ratio = inter / denominator;
  const double area_grad = grad * (base == Base::kUnion ? 1 + ratio : 1) / denominator;
  const double base_grad = -grad * ratio / denominator,
               other_base_grad = base == Base::kUnion ? base_grad : 0;
  store_gradient(intersection_gradient(b, a), area_grad, base_grad * 2 * a.half_h,
                 base_grad * 2 * a.half_w, to_a);
  store_gradient(intersection_gradient(a, b), area_grad, other_base_grad * 2 * b.half_h,
                 other_base_grad * 2 * b.half_w, to_b);
}

}  // namespace rotated

// "R3Det" (Yang et al., 2021), section 3.3 (feature refinement module): the features at points of a
// box are added to those of the pixel at which the box was found.

constexpr int64_t kMaxBoxPoints = 5;

// Calls visit(y, x) for the centre of a box and, with 5 points, its corners, in pixels of the
// feature map. `box` is (cx, cy, w, h, angle) in image pixels and degrees, counter-clockwise where
// the y axis points down.
template <typename T, typename Visit>
DETOPS_HD void visit_box_points(const T* box, T spatial_scale, int64_t points, Visit&& visit) {
  const T x = box[0] * spatial_scale, y = box[1] * spatial_scale;
  visit(y, x);
  if (points == 1) return;
  const T half_w = box[2] * spatial_scale / 2, half_h = box[3] * spatial_scale / 2;
  double sine, cosine;
  sin_cos_degrees(double(box[4]), sine, cosine);
  const T along_x = T(cosine) * half_w, along_y = -T(sine) * half_w;
  const T down_x = T(sine) * half_h, down_y = T(cosine) * half_h;
  visit(y + along_y + down_y, x + along_x + down_x);
  visit(y - along_y + down_y, x - along_x + down_x);
  visit(y - along_y - down_y, x - along_x - down_x);
  visit(y + along_y - down_y, x + along_x - down_x);
}

}  // namespace detops::math
