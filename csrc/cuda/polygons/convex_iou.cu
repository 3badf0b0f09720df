// SPDX-License-Identifier: MIT
#include "../../math/convex_iou.h"

#include "../../ops.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

using math::PointSet;

template <typename T>
__global__ void point_sets_kernel(const T* sets, int64_t count, PointSet* prepared) {
  DETOPS_FOR_EACH(i, count) { prepared[i] = math::point_set(sets + 18 * i); }
}

template <typename T>
__global__ void convex_iou_kernel(const PointSet* sets, int64_t n, const T* polygons, int64_t m,
                                  T* ious) {
  DETOPS_FOR_EACH(i, n * m) {
    const double iou = math::convex_iou(sets[i / m], math::quad(polygons + 8 * (i % m)));
    ious[i] = iou == iou ? static_cast<T>(iou) : T(0);
  }
}

template <typename T>
__global__ void convex_giou_kernel(const T* sets, const T* polygons, int64_t count, T* giou) {
  DETOPS_FOR_EACH(i, count) {
    giou[i] = static_cast<T>(
        math::convex_giou(math::point_set(sets + 18 * i), math::quad(polygons + 8 * i)));
  }
}

template <typename T>
__global__ void convex_giou_backward_kernel(const T* grad, const T* sets, const T* polygons,
                                            int64_t count, T* to_sets) {
  DETOPS_FOR_EACH(i, count) {
    double gradient[2 * math::kSetPoints];
    math::convex_giou_gradient(math::point_set(sets + 18 * i), math::quad(polygons + 8 * i),
                               double(grad[i]), gradient);
    for (int k = 0; k < 18; ++k) to_sets[18 * i + k] = static_cast<T>(gradient[k]);
  }
}

}  // namespace

void convex_iou(const Tensor& pointsets, const Tensor& polygons, Tensor& ious) {
  constexpr int64_t kNumbers = sizeof(PointSet) / sizeof(double);
  const Tensor sets = as_type(pointsets, ious.scalar_type()).contiguous();
  const Tensor quads = as_type(polygons, ious.scalar_type()).contiguous();
  const int64_t n = sets.size(0);
  const Tensor prepared = empty({n, kNumbers}, sets.options().dtype(kDouble));
  auto* hulls = reinterpret_cast<PointSet*>(prepared.mutable_data_ptr<double>());
  DETOPS_WIDE_SWITCH(ious.scalar_type(), [&] {
    launch("convex_iou", point_sets_kernel<scalar_t>, blocks_for(n),
           sets.const_data_ptr<scalar_t>(), n, hulls);
    launch("convex_iou", convex_iou_kernel<scalar_t>, blocks_for(ious.numel()), hulls, n,
           quads.const_data_ptr<scalar_t>(), quads.size(0), ious.mutable_data_ptr<scalar_t>());
  });
}

void convex_giou_forward(const Tensor& pointsets, const Tensor& polygons, Tensor& giou) {
  const Tensor sets = as_type(pointsets, giou.scalar_type()).contiguous();
  const Tensor quads = as_type(polygons, giou.scalar_type()).contiguous();
  DETOPS_WIDE_SWITCH(giou.scalar_type(), [&] {
    launch("convex_giou", convex_giou_kernel<scalar_t>, blocks_for(giou.numel()),
           sets.const_data_ptr<scalar_t>(), quads.const_data_ptr<scalar_t>(), giou.numel(),
           giou.mutable_data_ptr<scalar_t>());
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
    launch("convex_giou", convex_giou_backward_kernel<scalar_t>, blocks_for(outer.numel()),
           outer.const_data_ptr<scalar_t>(), sets.const_data_ptr<scalar_t>(),
           quads.const_data_ptr<scalar_t>(), outer.numel(), to.mutable_data_ptr<scalar_t>());
  });
  to_pointsets = as_type(to, to_pointsets.scalar_type());
}

}  // namespace detops::cuda
