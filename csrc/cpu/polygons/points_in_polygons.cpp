// SPDX-License-Identifier: MIT
#include "../../math/polygon.h"

#include "../../ops.h"
#include "../common/buffer.h"
#include "../common/memory.h"

namespace detops::cpu {

// Corners of quadrilaterals, a column each, with room for a vector behind the last.
struct QuadColumns {
  double *x[4], *y[4];
  int64_t count;
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../polygons/points_in_polygons.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kPairsPerThread = 1 << 14, kLongestVector = 8;

}  // namespace

void points_in_polygons(const Tensor& points, const Tensor& polygons, Tensor& output) {
  expect_writes(output);
  const ScalarType type = compute_type(points, polygons);
  const Tensor places = as_type(points, type).contiguous();
  const Tensor corners = as_type(polygons, type).contiguous();
  const int64_t m = corners.size(0), stride = m + kLongestVector;
  Buffer<double> storage(8 * stride);
  QuadColumns quads{{}, {}, m};
  for (int64_t c = 0; c < 4; ++c) {
    quads.x[c] = storage.data() + c * stride;
    quads.y[c] = storage.data() + (4 + c) * stride;
  }
  DETOPS_WIDE_SWITCH(type, [&] {
    const scalar_t* of = corners.const_data_ptr<scalar_t>();
    for (int64_t j = 0; j < stride; ++j) {
      double x[4] = {}, y[4] = {};
      if (j < m) math::finite_corners(of + 8 * j, x, y);
      for (int64_t c = 0; c < 4; ++c) {
        quads.x[c][j] = x[c];
        quads.y[c][j] = y[c];
      }
    }
    const scalar_t* place = places.const_data_ptr<scalar_t>();
    bool* out = output.mutable_data_ptr<bool>();
    const auto rows = DETOPS_IN_USE(points_in_polygons_rows<scalar_t>);
    const int64_t grain = std::max<int64_t>(1, kPairsPerThread / m);
    parallel_for(0, places.size(0), grain, [&](int64_t begin, int64_t end) {
      rows(place + 2 * begin, end - begin, quads, out + begin * m);
    });
  });
}

}  // namespace detops::cpu
