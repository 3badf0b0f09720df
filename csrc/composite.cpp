// SPDX-License-Identifier: MIT
#include <cmath>
#include <map>
#include <string>

#include "ops.h"

namespace detops::composite {
namespace {

constexpr double kDegree = 3.14159265358979323846 / 180;

void check_boxes(const char* op, const Tensor& boxes, int64_t columns) {
  TORCH_CHECK(boxes.dim() >= 1 && boxes.size(-1) == columns, "detops.", op, ": boxes must be [N, ",
              columns, "], got ", boxes.sym_sizes());
}

Tensor stack(const std::vector<Tensor>& columns) { return at::stack(columns, -1); }

struct Format {
  int64_t columns;
  Tensor (*to_canonical)(const Tensor&);
  Tensor (*from_canonical)(const Tensor&);
};

// Upright formats meet in xyxy.
Tensor identity(const Tensor& boxes) { return boxes; }

Tensor xywh_to_xyxy(const Tensor& boxes) {
  const auto c = boxes.unbind(-1);
  return stack({c[0], c[1], c[0] + c[2], c[1] + c[3]});
}

Tensor xyxy_to_xywh(const Tensor& boxes) {
  const auto c = boxes.unbind(-1);
  return stack({c[0], c[1], c[2] - c[0], c[3] - c[1]});
}

Tensor cxcywh_to_xyxy(const Tensor& boxes) {
  const auto c = boxes.unbind(-1);
  const Tensor half_w = 0.5 * c[2], half_h = 0.5 * c[3];
  return stack({c[0] - half_w, c[1] - half_h, c[0] + half_w, c[1] + half_h});
}

Tensor xyxy_to_cxcywh(const Tensor& boxes) {
  const auto c = boxes.unbind(-1);
  return stack({(c[0] + c[2]) / 2, (c[1] + c[3]) / 2, c[2] - c[0], c[3] - c[1]});
}

// Rotated formats meet in xywhr: the first corner, the size, and the angle in degrees,
// counter-clockwise in an image whose y axis points down. The side w runs along (cos, -sin), the
// side h along (sin, cos).
struct Sides {
  Tensor x, y, w, h, cos, sin;
};

Sides sides(const Tensor& boxes) {
  const auto c = boxes.unbind(-1);
  const Tensor angle = c[4] * kDegree;
  return {c[0], c[1], c[2], c[3], angle.cos(), angle.sin()};
}

Tensor shifted_by_half(const Tensor& boxes, double sign) {
  const Sides s = sides(boxes);
  const Tensor half_w = s.w * (0.5 * sign), half_h = s.h * (0.5 * sign);
  return stack({s.x + half_w * s.cos + half_h * s.sin, s.y - half_w * s.sin + half_h * s.cos, s.w,
                s.h, boxes.select(-1, 4)});
}

Tensor cxcywhr_to_xywhr(const Tensor& boxes) { return shifted_by_half(boxes, -1); }
Tensor xywhr_to_cxcywhr(const Tensor& boxes) { return shifted_by_half(boxes, 1); }

Tensor xywhr_to_corners(const Tensor& boxes) {
  const Sides s = sides(boxes);
  const Tensor wx = s.w * s.cos, wy = -s.w * s.sin, hx = s.h * s.sin, hy = s.h * s.cos;
  return stack({s.x, s.y, s.x + wx, s.y + wy, s.x + wx + hx, s.y + wy + hy, s.x + hx, s.y + hy});
}

Tensor corners_to_xywhr(const Tensor& boxes) {
  const auto c = boxes.unbind(-1);
  const Tensor wx = c[2] - c[0], wy = c[1] - c[3], hx = c[4] - c[2], hy = c[5] - c[3];
  return stack({c[0], c[1], (wx * wx + wy * wy).sqrt(), (hx * hx + hy * hy).sqrt(),
                at::atan2(wy, wx) / kDegree});
}

const std::map<std::string, Format>& upright() {
  static const std::map<std::string, Format> formats{
      {"xyxy", {4, identity, identity}},
      {"xywh", {4, xywh_to_xyxy, xyxy_to_xywh}},
      {"cxcywh", {4, cxcywh_to_xyxy, xyxy_to_cxcywh}}};
  return formats;
}

const std::map<std::string, Format>& rotated() {
  static const std::map<std::string, Format> formats{
      {"xywhr", {5, identity, identity}},
      {"cxcywhr", {5, cxcywhr_to_xywhr, xywhr_to_cxcywhr}},
      {"xyxyxyxy", {8, corners_to_xywhr, xywhr_to_corners}}};
  return formats;
}

}  // namespace

Tensor box_area(const Tensor& boxes) {
  check_boxes("box_area", boxes, 4);
  // Products of half precision sides overflow from 256 pixels on.
  const Tensor wide =
      boxes.is_floating_point() ? boxes.to(compute_type(boxes.scalar_type())) : boxes;
  const auto c = wide.unbind(-1);
  return (c[2] - c[0]) * (c[3] - c[1]);
}

Tensor box_convert(const Tensor& boxes, c10::string_view in_fmt, c10::string_view out_fmt) {
  const std::string in(in_fmt), out(out_fmt);
  for (const auto* formats : {&upright(), &rotated()}) {
    const auto from = formats->find(in), to = formats->find(out);
    if (from == formats->end() || to == formats->end()) continue;
    check_boxes("box_convert", boxes, from->second.columns);
    if (in == out) return boxes.clone();
    // Angles need real numbers; integer boxes get theirs back, rounded.
    const bool whole = formats == &rotated() && !boxes.is_floating_point();
    const Tensor converted =
        to->second.from_canonical(from->second.to_canonical(whole ? boxes.to(at::kFloat) : boxes));
    return whole ? converted.round().to(boxes.scalar_type()) : converted;
  }
  TORCH_CHECK_VALUE(false,
                    "detops.box_convert: in_fmt and out_fmt must both be one of xyxy, xywh, "
                    "cxcywh, or both one of xywhr, cxcywhr, xyxyxyxy, got ",
                    in, " and ", out);
}

Tensor clip_boxes_to_image(const Tensor& boxes, c10::SymInt height, c10::SymInt width) {
  check_boxes("clip_boxes_to_image", boxes, 4);
  const auto c = boxes.unbind(-1);
  const auto clamp = [](const Tensor& x, const c10::SymInt& high) {
    return x.clamp(at::Scalar(0), at::Scalar(high));
  };
  return stack({clamp(c[0], width), clamp(c[1], height), clamp(c[2], width), clamp(c[3], height)});
}

Tensor remove_small_boxes(const Tensor& boxes, double min_size) {
  check_boxes("remove_small_boxes", boxes, 4);
  TORCH_CHECK(boxes.dim() == 2, "detops.remove_small_boxes: boxes must be [N, 4], got ",
              boxes.sym_sizes());
  const auto c = boxes.unbind(-1);
  return at::logical_and(c[2] - c[0] >= min_size, c[3] - c[1] >= min_size).nonzero().squeeze(-1);
}

}  // namespace detops::composite
