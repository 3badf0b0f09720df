// SPDX-License-Identifier: MIT
#include "../../math/polygon.h"

#include "../common/host.h"

#define DETOPS_KERNELS "../polygons/points_in_polygons.inl"
#include "../simd/variants.h"

namespace detops::cpu {

void points_in_polygons(const Tensor& points, const Tensor& polygons, Tensor& output) {
  constexpr int64_t kPairsPerThread = 1 << 14, kMaxLanes = 8;
  const ScalarType type = compute_type(points, polygons);
  const Tensor wide_points = points.to(type).contiguous();
  const Tensor corners = polygons.to(type).contiguous();
  const int64_t m = corners.size(0), stride = m + kMaxLanes;
  Buffer<double> columns(8 * stride);  // four columns of x of the corners, then four of y
  DETOPS_WIDE_SWITCH(type, [&] {
    const scalar_t* coords = corners.const_data_ptr<scalar_t>();
    for (int64_t j = 0; j < stride; ++j) {
      double corner_coords[8] = {};
      if (j < m) math::finite_corners(coords + 8 * j, corner_coords, corner_coords + 4);
      for (int64_t c = 0; c < 8; ++c) columns[c * stride + j] = corner_coords[c];
    }
    const scalar_t* point = wide_points.const_data_ptr<scalar_t>();
    bool* out = output.mutable_data_ptr<bool>();
    const auto rows = DETOPS_IN_USE(points_in_polygons_rows<scalar_t>);
    parallel_for(wide_points.size(0), grain_for(kPairsPerThread, m),
                 [&](int64_t begin, int64_t end) {
                   rows(point + 2 * begin, end - begin, columns.data(), stride, m, out + begin * m);
                 });
  });
}

}  // namespace detops::cpu
