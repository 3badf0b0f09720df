// SPDX-License-Identifier: MIT
#include "../../math/convex_iou.h"

#include "../../boxes/box_lists.h"
#include "bounds.h"

// These ops work on sets of nine points.
namespace detops::cpu {

constexpr int64_t kGradientsPerThread = 1 << 7;

void convex_iou(const Tensor& pointsets, const Tensor& polygons, Tensor& ious) {
  const BoxLists lists(pointsets, polygons, ious.scalar_type());
  DETOPS_WIDE_SWITCH(ious.scalar_type(), [&] {
    const scalar_t* sets = lists.first.const_data_ptr<scalar_t>();
    const auto row_of = [&](int64_t i) -> Bounded<math::PointSet> {
      const math::PointSet set = math::point_set(sets + 18 * i);
      return {set, bounds_of(set.hull.at, set.hull.count)};
    };
    overlap_with_quads(
        lists.second.const_data_ptr<scalar_t>(), ious, row_of,
        [](const auto& set, const auto& quad) { return math::convex_iou(set, quad); });
  });
}

void convex_giou_forward(const Tensor& pointsets, const Tensor& polygons, Tensor& giou) {
  const BoxLists lists(pointsets, polygons, giou.scalar_type());
  DETOPS_WIDE_SWITCH(giou.scalar_type(), [&] {
    const scalar_t* sets = lists.first.const_data_ptr<scalar_t>();
    const scalar_t* quads = lists.second.const_data_ptr<scalar_t>();
    scalar_t* out = giou.mutable_data_ptr<scalar_t>();
    parallel_each(giou.numel(), kGradientsPerThread, [&](int64_t i) {
      out[i] = static_cast<scalar_t>(
          math::convex_giou(math::point_set(sets + 18 * i), math::quad(quads + 8 * i)));
    });
  });
}

void convex_giou_backward(const Tensor& grad, const Tensor& pointsets, const Tensor& polygons,
                          Tensor& to_pointsets) {
  const ScalarType type = compute_type(pointsets, polygons);
  const BoxLists lists(pointsets, polygons, type);
  const Tensor outer = as_type(grad, type).contiguous();
  DETOPS_WIDE_SWITCH(type, [&] {
    const scalar_t* g = outer.const_data_ptr<scalar_t>();
    const scalar_t* sets = lists.first.const_data_ptr<scalar_t>();
    const scalar_t* quads = lists.second.const_data_ptr<scalar_t>();
    scalar_t* out = to_pointsets.mutable_data_ptr<scalar_t>();
    parallel_each(outer.numel(), kGradientsPerThread, [&](int64_t i) {
      double gradient[2 * math::kSetPoints];
      math::convex_giou_gradient(math::point_set(sets + 18 * i), math::quad(quads + 8 * i),
                                 double(g[i]), gradient);
      for (int k = 0; k < 18; ++k) out[18 * i + k] = static_cast<scalar_t>(gradient[k]);
    });
  });
}

void min_area_polygons(const Tensor& pointsets, Tensor& polygons) {
  constexpr int64_t kSetsPerThread = 1 << 8;
  const Tensor sets = wide(pointsets);
  DETOPS_WIDE_SWITCH(polygons.scalar_type(), [&] {
    const scalar_t* set = sets.const_data_ptr<scalar_t>();
    scalar_t* out = polygons.mutable_data_ptr<scalar_t>();
    parallel_each(sets.size(0), kSetsPerThread,
                  [&](int64_t i) { math::min_area_polygon(set + 18 * i, out + 8 * i); });
  });
}

}  // namespace detops::cpu
