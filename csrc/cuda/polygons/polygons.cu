// SPDX-License-Identifier: MIT
#include "../../boxes/box_lists.h"
#include "../../math/convex_iou.h"
#include "../../math/polygon.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

// Of all pairs, with m columns, or of matched boxes.
template <bool matched, math::Base base, typename T>
__global__ void box_iou_quadri_kernel(const T* a, const T* b, int64_t m, int64_t count, T* out) {
  DETOPS_FOR_EACH(i, count) {
    const int64_t row = matched ? i : i / m, column = matched ? i : i % m;
    const double iou = math::iou<base>(math::quad(a + 8 * row), math::quad(b + 8 * column));
    out[i] = iou == iou ? static_cast<T>(iou) : T(0);
  }
}

template <bool matched>
void launch_overlaps(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                     const Tensor& output) {
  const BoxLists lists(boxes1, boxes2, output.scalar_type());
  DETOPS_WIDE_SWITCH(output.scalar_type(), [&] {
    math::with_base(overlap_base(mode), [&](auto base) {
      launch(box_iou_quadri_kernel<matched, base, scalar_t>, blocks_for(output.numel()),
             lists.first, lists.second, lists.second.size(0), output.numel(), output);
    });
  });
}

}  // namespace

void box_iou_quadri(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                    Tensor& output) {
  launch_overlaps<false>(boxes1, boxes2, mode, output);
}

void box_iou_quadri_pairs(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                          Tensor& output) {
  launch_overlaps<true>(boxes1, boxes2, mode, output);
}

void convex_iou(const Tensor& pointsets, const Tensor& polygons, Tensor& ious) {
  constexpr int64_t kNumbers = sizeof(math::PointSet) / sizeof(double);
  const BoxLists lists(pointsets, polygons, ious.scalar_type());
  const int64_t n = pointsets.size(0), m = polygons.size(0);
  const Tensor prepared = empty({n, kNumbers}, pointsets.options().dtype(kDouble));
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

void convex_giou_forward(const Tensor& pointsets, const Tensor& polygons, Tensor& giou) {
  const BoxLists lists(pointsets, polygons, giou.scalar_type());
  DETOPS_WIDE_SWITCH(giou.scalar_type(), [&] {
    const scalar_t *set = elements(lists.first), *quad = elements(lists.second);
    scalar_t* to = elements(giou);
    for_each(giou.numel(), [=] __device__(int64_t i) {
      to[i] = static_cast<scalar_t>(
          math::convex_giou(math::point_set(set + 18 * i), math::quad(quad + 8 * i)));
    });
  });
}

void convex_giou_backward(const Tensor& grad, const Tensor& pointsets, const Tensor& polygons,
                          Tensor& to_pointsets) {
  const ScalarType type = compute_type(pointsets, polygons);
  const Tensor outer = wide(grad, type), sets = wide(pointsets, type), quads = wide(polygons, type);
  DETOPS_WIDE_SWITCH(type, [&] {
    const scalar_t *g = elements(outer), *set = elements(sets), *quad = elements(quads);
    scalar_t* to = elements(to_pointsets);
    for_each(outer.numel(), [=] __device__(int64_t i) {
      double gradient[2 * math::kSetPoints];
      math::convex_giou_gradient(math::point_set(set + 18 * i), math::quad(quad + 8 * i),
                                 double(g[i]), gradient);
      for (int k = 0; k < 18; ++k) to[18 * i + k] = static_cast<scalar_t>(gradient[k]);
    });
  });
}

void min_area_polygons(const Tensor& pointsets, Tensor& polygons) {
  const Tensor sets = wide(pointsets);
  DETOPS_WIDE_SWITCH(polygons.scalar_type(), [&] {
    const scalar_t* set = elements(sets);
    scalar_t* to = elements(polygons);
    for_each(sets.size(0),
             [=] __device__(int64_t i) { math::min_area_polygon(set + 18 * i, to + 8 * i); });
  });
}

void points_in_polygons(const Tensor& points, const Tensor& polygons, Tensor& output) {
  const ScalarType type = compute_type(points, polygons);
  const Tensor places = wide(points, type), corners = wide(polygons, type);
  const int64_t m = corners.size(0);
  bool* within = elements(output);
  DETOPS_WIDE_SWITCH(type, [&] {
    const scalar_t *point = elements(places), *polygon = elements(corners);
    for_each(output.numel(), [=] __device__(int64_t i) {
      const int64_t at = i / m;
      double x[4], y[4];
      math::finite_corners(polygon + 8 * (i - at * m), x, y);
      within[i] = math::inside::within(double(point[2 * at]), double(point[2 * at + 1]), x, y);
    });
  });
}

}  // namespace detops::cuda
