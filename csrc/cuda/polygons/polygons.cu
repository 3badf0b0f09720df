// SPDX-License-Identifier: MIT
#include "../../host/box_lists.h"
#include "../../math/convex_iou.h"
#include "../../math/polygon.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

// Computes the overlaps of all pairs or, if `matched`, of matched boxes.
template <bool matched>
void overlaps(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
              const Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  const math::Base base = overlap_base(mode);
  const int64_t m = lists.second.size(0);
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    const scalar_t *a = elements(lists.first), *b = elements(lists.second);
    scalar_t* out = elements(output);
    for_each(output.numel(), [=] __device__(int64_t i) {
      const int64_t row = matched ? i : i / m, column = matched ? i : i % m;
      const double iou = math::iou(math::quad(a + 8 * row), math::quad(b + 8 * column), base);
      out[i] = iou == iou ? static_cast<scalar_t>(iou) : scalar_t(0);
    });
  });
}

}  // namespace

void box_iou_quadri(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                    Tensor& output) {
  overlaps<false>(boxes1, boxes2, mode, output);
}

void box_iou_quadri_pairs(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                          Tensor& output) {
  overlaps<true>(boxes1, boxes2, mode, output);
}

void convex_iou(const Tensor& pointsets, const Tensor& polygons, Tensor& ious) {
  constexpr int64_t kElements = sizeof(math::PointSet) / sizeof(double);
  const BoxLists lists(pointsets, polygons, ious.scalar_type());
  const int64_t n = pointsets.size(0), m = polygons.size(0);
  const Tensor prepared = empty({n, kElements}, pointsets.options().dtype(kDouble));
  auto* prepared_set = reinterpret_cast<math::PointSet*>(prepared.mutable_data_ptr<double>());
  DETOPS_WIDE_SWITCH(ious.scalar_type(), [&] {
    const scalar_t *set = elements(lists.first), *quad = elements(lists.second);
    scalar_t* to = elements(ious);
    for_each(n, [=] __device__(int64_t i) { prepared_set[i] = math::point_set(set + 18 * i); });
    for_each(n * m, [=] __device__(int64_t i) {
      const double iou = math::convex_iou(prepared_set[i / m], math::quad(quad + 8 * (i % m)));
      to[i] = iou == iou ? static_cast<scalar_t>(iou) : scalar_t(0);
    });
  });
}

#include "../../host/point_sets.inl"

void points_in_polygons(const Tensor& points, const Tensor& polygons, Tensor& output) {
  const ScalarType type = compute_type(points, polygons);
  const Tensor wide_points = wide(points, type), corners = wide(polygons, type);
  const int64_t m = corners.size(0);
  bool* within = elements(output);
  DETOPS_WIDE_SWITCH(type, [&] {
    const scalar_t *point = elements(wide_points), *polygon = elements(corners);
    for_each(output.numel(), [=] __device__(int64_t i) {
      const int64_t at = i / m;
      double x[4], y[4];
      math::finite_corners(polygon + 8 * (i - at * m), x, y);
      within[i] = math::inside::within(double(point[2 * at]), double(point[2 * at + 1]), x, y);
    });
  });
}

}  // namespace detops::cuda
