// SPDX-License-Identifier: MIT
#include "../../math/convex_iou.h"
#include "../../ops.h"

namespace detops::cpu {

void min_area_polygons(const Tensor& pointsets, Tensor& polygons) {
  constexpr int64_t kSetsPerThread = 1 << 8;
  const Tensor sets = wide(pointsets);
  DETOPS_WIDE_SWITCH(polygons.scalar_type(), [&] {
    const scalar_t* set = sets.const_data_ptr<scalar_t>();
    scalar_t* out = polygons.mutable_data_ptr<scalar_t>();
    parallel_for(0, sets.size(0), kSetsPerThread, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) math::min_area_polygon(set + 18 * i, out + 8 * i);
    });
  });
}

}  // namespace detops::cpu
