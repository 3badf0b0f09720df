// SPDX-License-Identifier: MIT
#include "../../math/polygon.h"

#include "../common/host.h"

#define DETOPS_KERNELS "../polygons/points_in_polygons.inl"
#include "../simd/variants.h"

namespace detops::cpu {

void points_in_polygons(const Tensor& points, const Tensor& polygons, Tensor& output) {
  constexpr int64_t kPairsPerThread = 1 << 14, kLongestVector = 8;
  const ScalarType type = compute_type(points, polygons);
  const Tensor places = points.to(type).contiguous();
  const Tensor corners = polygons.to(type).contiguous();
  const int64_t m = corners.size(0), stride = m + kLongestVector;
  Buffer<double> columns(8 * stride);  // four columns of x of the corners, then four of y
  DETOPS_WIDE_SWITCH(type, [&] {
    const scalar_t* of = corners.const_data_ptr<scalar_t>();
    for (int64_t j = 0; j < stride; ++j) {
      double at[8] = {};
      if (j < m) math::finite_corners(of + 8 * j, at, at + 4);
      for (int64_t c = 0; c < 8; ++c) columns[c * stride + j] = at[c];
    }
    const scalar_t* place = places.const_data_ptr<scalar_t>();
    bool* out = output.mutable_data_ptr<bool>();
    const auto rows = DETOPS_IN_USE(points_in_polygons_rows<scalar_t>);
    parallel_for(places.size(0), grain_for(kPairsPerThread, m), [&](int64_t begin, int64_t end) {
      rows(place + 2 * begin, end - begin, columns.data(), stride, m, out + begin * m);
    });
  });
}

}  // namespace detops::cpu
