// SPDX-License-Identifier: MIT
#include "../../math/convex_iou.h"

#include "../../host/box_lists.h"
#include "bounds.h"

// These ops work on sets of nine points.
namespace detops::cpu {
namespace {

template <typename Each>
void for_each(int64_t n, const Each& each) {
  parallel_each(n, 128, each);
}

}  // namespace

void convex_iou(const Tensor& pointsets, const Tensor& polygons, Tensor& ious) {
  const BoxLists lists(pointsets, polygons, ious.scalar_type());
  DETOPS_WIDE_SWITCH(ious.scalar_type(), [&] {
    const scalar_t* sets = lists.first.const_data_ptr<scalar_t>();
    const auto shape_at = [&](int64_t i) -> Bounded<math::PointSet> {
      const math::PointSet set = math::point_set(sets + 18 * i);
      return {set, bounding_box(set.hull.corners, set.hull.count)};
    };
    overlap_with_quads(
        lists.second.const_data_ptr<scalar_t>(), ious, shape_at,
        [](const auto& set, const auto& quad) { return math::convex_iou(set, quad); });
  });
}

#include "../../host/point_sets.inl"

}  // namespace detops::cpu
