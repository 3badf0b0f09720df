// SPDX-License-Identifier: MIT
#include "../../math/polygon.h"
#include "../../ops.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

template <typename T>
__global__ void points_in_polygons_kernel(const T* points, int64_t n, const T* polygons, int64_t m,
                                          bool* output) {
  DETOPS_FOR_EACH(i, n * m) {
    double x[4], y[4];
    math::finite_corners(polygons + 8 * (i % m), x, y);
    const T* point = points + 2 * (i / m);
    output[i] = math::inside::within(double(point[0]), double(point[1]), x, y);
  }
}

}  // namespace

void points_in_polygons(const Tensor& points, const Tensor& polygons, Tensor& output) {
  const ScalarType type = compute_type(points, polygons);
  const Tensor places = as_type(points, type).contiguous();
  const Tensor corners = as_type(polygons, type).contiguous();
  DETOPS_WIDE_SWITCH(type, [&] {
    launch("points_in_polygons", points_in_polygons_kernel<scalar_t>, blocks_for(output.numel()),
           places.const_data_ptr<scalar_t>(), places.size(0), corners.const_data_ptr<scalar_t>(),
           corners.size(0), output.mutable_data_ptr<bool>());
  });
}

}  // namespace detops::cuda
