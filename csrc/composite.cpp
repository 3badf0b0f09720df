// SPDX-License-Identifier: MIT
#include <cmath>
#include <map>
#include <string>

#include "meta/checks.h"
#include "ops.h"

namespace detops::composite {
namespace {

constexpr double kDegree = 3.14159265358979323846 / 180;

// The number of boxes is not looked at: compiled code is for any.
void check_boxes(const char* op, const Tensor& boxes, int64_t columns) {
  DETOPS_CHECK(boxes.dim() >= 1, op, "boxes must be [N, ", columns, "], got ", boxes.sym_sizes());
  TORCH_SYM_CHECK(boxes.sym_size(-1).sym_eq(columns), "detops.", op, ": boxes must be [N, ",
                  columns, "], got ", boxes.sym_sizes());
  const auto type = boxes.scalar_type();
  DETOPS_CHECK(meta::is_float(type) || meta::is_integer(type), op,
               "boxes must be float32, float64, float16 or bfloat16, or int64, int32, int16, int8 "
               "or uint8, got ",
               type);
}

// Sums and products of integers of 8 and 16 bits are beyond them: an image has more pixels.
Tensor without_narrow_integers(const Tensor& boxes) {
  const auto type = boxes.scalar_type();
  return meta::is_integer(type) && type != at::kLong ? as_type(boxes, at::kInt) : boxes;
}

// Not at::unbind, which asks for all sizes.
std::vector<Tensor> columns_of(const Tensor& boxes, int64_t count = 4) {
  std::vector<Tensor> columns;
  for (int64_t i = 0; i < count; ++i) columns.push_back(boxes.select(-1, i));
  return columns;
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
  const auto c = columns_of(boxes);
  return stack({c[0], c[1], c[0] + c[2], c[1] + c[3]});
}

Tensor xyxy_to_xywh(const Tensor& boxes) {
  const auto c = columns_of(boxes);
  return stack({c[0], c[1], c[2] - c[0], c[3] - c[1]});
}

Tensor cxcywh_to_xyxy(const Tensor& boxes) {
  const auto c = columns_of(boxes);
  const Tensor half_w = 0.5 * c[2], half_h = 0.5 * c[3];
  return stack({c[0] - half_w, c[1] - half_h, c[0] + half_w, c[1] + half_h});
}

Tensor xyxy_to_cxcywh(const Tensor& boxes) {
  const auto c = columns_of(boxes);
  return stack({(c[0] + c[2]) / 2, (c[1] + c[3]) / 2, c[2] - c[0], c[3] - c[1]});
}

// Rotated formats meet in xywhr: the first corner, the size, and the angle in degrees,
// counter-clockwise in an image whose y axis points down. The side w runs along (cos, -sin), the
// side h along (sin, cos).
struct Sides {
  Tensor x, y, w, h, cos, sin;
};

Sides sides(const Tensor& boxes) {
  const auto c = columns_of(boxes, 5);
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
  const auto c = columns_of(boxes, 8);
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

// A side of an image that integer boxes cannot express is beyond all of them.
int64_t largest_of(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return UINT8_MAX;
    case at::kChar:
      return INT8_MAX;
    case at::kShort:
      return INT16_MAX;
    default:
      return meta::kMaxSize;
  }
}

}  // namespace

Tensor box_area(const Tensor& boxes, c10::string_view fmt) {
  check_boxes("box_area", boxes, 4);
  const bool corners = fmt == "xyxy";
  TORCH_CHECK_VALUE(corners || fmt == "xywh" || fmt == "cxcywh",
                    "detops.box_area: fmt must be xyxy, xywh or cxcywh, got ", fmt);
  // Products of half precision sides overflow from 256 pixels on.
  const auto c =
      columns_of(boxes.is_floating_point() ? as_type(boxes, compute_type(boxes.scalar_type()))
                                           : without_narrow_integers(boxes));
  return corners ? (c[2] - c[0]) * (c[3] - c[1]) : c[2] * c[3];
}

Tensor box_convert(const Tensor& boxes, c10::string_view in_fmt, c10::string_view out_fmt) {
  const std::string in(in_fmt), out(out_fmt);
  for (const auto* formats : {&upright(), &rotated()}) {
    const auto from = formats->find(in), to = formats->find(out);
    if (from == formats->end() || to == formats->end()) continue;
    check_boxes("box_convert", boxes, from->second.columns);
    const Tensor wide = without_narrow_integers(boxes);
    if (in == out) return wide.is_same(boxes) ? boxes.clone() : wide;
    // Angles need real numbers; integer boxes get theirs back, rounded.
    const bool whole = formats == &rotated() && !boxes.is_floating_point();
    const Tensor converted =
        to->second.from_canonical(from->second.to_canonical(whole ? wide.to(at::kFloat) : wide));
    return whole ? converted.round().to(wide.scalar_type()) : converted;
  }
  TORCH_CHECK_VALUE(false,
                    "detops.box_convert: in_fmt and out_fmt must both be one of xyxy, xywh, "
                    "cxcywh, or both one of xywhr, cxcywhr, xyxyxyxy, got ",
                    in, " and ", out);
}

Tensor clip_boxes_to_image(const Tensor& boxes, c10::SymInt height, c10::SymInt width) {
  const char* op = "clip_boxes_to_image";
  check_boxes(op, boxes, 4);
  TORCH_SYM_CHECK(height.sym_ge(0).sym_and(width.sym_ge(0)), "detops.", op,
                  ": size must be at least 0 x 0, got ", height, " x ", width);
  meta::check_size(op, "size", height);
  meta::check_size(op, "size", width);
  const auto c = columns_of(boxes);
  const auto clamp = [](const Tensor& x, const c10::SymInt& high) {
    return x.clamp(at::Scalar(0), at::Scalar(high.min(largest_of(x.scalar_type()))));
  };
  return stack({clamp(c[0], width), clamp(c[1], height), clamp(c[2], width), clamp(c[3], height)});
}

Tensor remove_small_boxes(const Tensor& boxes, double min_size) {
  check_boxes("remove_small_boxes", boxes, 4);
  TORCH_CHECK(boxes.dim() == 2, "detops.remove_small_boxes: boxes must be [N, 4], got ",
              boxes.sym_sizes());
  TORCH_CHECK_NOT_IMPLEMENTED(!boxes.is_meta(),
                              "detops.remove_small_boxes: boxes on meta have no values that would "
                              "tell how many stay");
  const auto c = columns_of(without_narrow_integers(boxes));
  return at::logical_and(c[2] - c[0] >= min_size, c[3] - c[1] >= min_size).nonzero().squeeze(-1);
}

}  // namespace detops::composite
