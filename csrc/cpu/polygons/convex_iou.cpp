// SPDX-License-Identifier: MIT
#include "../../math/convex_iou.h"

#include "../../ops.h"
#include "../common/memory.h"
#include "bounds.h"

namespace detops::cpu {
namespace {

constexpr int64_t kPairsPerThread = 1 << 10, kGradientsPerThread = 1 << 7;

}  // namespace

void convex_iou(const Tensor& pointsets, const Tensor& polygons, Tensor& ious) {
  expect_writes(ious);
  const Tensor sets = as_type(pointsets, ious.scalar_type()).contiguous();
  const Tensor quads = as_type(polygons, ious.scalar_type()).contiguous();
  const int64_t n = sets.size(0), m = quads.size(0);
  DETOPS_WIDE_SWITCH(ious.scalar_type(), [&] {
    const scalar_t* set = sets.const_data_ptr<scalar_t>();
    const scalar_t* corners = quads.const_data_ptr<scalar_t>();
    scalar_t* out = ious.mutable_data_ptr<scalar_t>();
    const auto others = bounded_quads(corners, m);
    parallel_for(0, n, std::max<int64_t>(1, kPairsPerThread / m), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const math::PointSet points = math::point_set(set + 18 * i);
        const math::Box<double> bounds = bounds_of(points.hull.at, points.hull.count);
        for (int64_t j = 0; j < m; ++j) {
          const bool meet = can_meet(bounds, others[j].bounds);
          const double iou = meet ? math::convex_iou(points, others[j].quad) : 0;
          out[i * m + j] = iou == iou ? static_cast<scalar_t>(iou) : scalar_t(0);
        }
      }
    });
  });
}

void convex_giou_forward(const Tensor& pointsets, const Tensor& polygons, Tensor& giou) {
  const Tensor sets = as_type(pointsets, giou.scalar_type()).contiguous();
  const Tensor quads = as_type(polygons, giou.scalar_type()).contiguous();
  DETOPS_WIDE_SWITCH(giou.scalar_type(), [&] {
    const scalar_t* set = sets.const_data_ptr<scalar_t>();
    const scalar_t* corners = quads.const_data_ptr<scalar_t>();
    scalar_t* out = giou.mutable_data_ptr<scalar_t>();
    parallel_for(0, giou.numel(), kGradientsPerThread, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        out[i] = static_cast<scalar_t>(
            math::convex_giou(math::point_set(set + 18 * i), math::quad(corners + 8 * i)));
      }
    });
  });
}

void convex_giou_backward(const Tensor& grad, const Tensor& pointsets, const Tensor& polygons,
                          Tensor& to_pointsets) {
  const ScalarType type = compute_type(pointsets, polygons);
  const Tensor outer = as_type(grad, type).contiguous();
  const Tensor sets = as_type(pointsets, type).contiguous();
  const Tensor quads = as_type(polygons, type).contiguous();
  const Tensor to = as_type(to_pointsets, type);  // itself, mostly
  DETOPS_WIDE_SWITCH(type, [&] {
    const scalar_t* g = outer.const_data_ptr<scalar_t>();
    const scalar_t* set = sets.const_data_ptr<scalar_t>();
    const scalar_t* corners = quads.const_data_ptr<scalar_t>();
    scalar_t* out = to.mutable_data_ptr<scalar_t>();
    parallel_for(0, outer.numel(), kGradientsPerThread, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double gradient[2 * math::kSetPoints];
        math::convex_giou_gradient(math::point_set(set + 18 * i), math::quad(corners + 8 * i),
                                   double(g[i]), gradient);
        for (int k = 0; k < 18; ++k) out[18 * i + k] = static_cast<scalar_t>(gradient[k]);
      }
    });
  });
  to_pointsets = as_type(to, to_pointsets.scalar_type());
}

}  // namespace detops::cpu
