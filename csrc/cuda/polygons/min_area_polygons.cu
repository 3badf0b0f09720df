// SPDX-License-Identifier: MIT
#include "../../math/convex_iou.h"
#include "../../ops.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

template <typename T>
__global__ void min_area_polygons_kernel(const T* sets, int64_t count, T* polygons) {
  DETOPS_FOR_EACH(i, count) { math::min_area_polygon(sets + 18 * i, polygons + 8 * i); }
}

}  // namespace

void min_area_polygons(const Tensor& pointsets, Tensor& polygons) {
  const Tensor sets = wide(pointsets);
  DETOPS_WIDE_SWITCH(polygons.scalar_type(), [&] {
    launch("min_area_polygons", min_area_polygons_kernel<scalar_t>, blocks_for(sets.size(0)),
           sets.const_data_ptr<scalar_t>(), sets.size(0), polygons.mutable_data_ptr<scalar_t>());
  });
}

}  // namespace detops::cuda
