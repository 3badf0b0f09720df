// SPDX-License-Identifier: MIT
#include "../../math/chamfer_distance.h"
#include "../../host/box_lists.h"
#include "../common/host.h"

#define DETOPS_KERNELS "../boxes/chamfer_distance.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kPairsPerThread = 1 << 15;
constexpr int64_t kPointsPerTask = 512;

// Copies each set to columns: all x, then all y.
template <typename T>
Buffer<T> to_columns(const T* points, int64_t sets, int64_t count) {
  Buffer<T> columns(2 * sets * count);
  for (int64_t b = 0; b < sets; ++b) {
    const T* from = points + 2 * b * count;
    T *x = columns.data() + 2 * b * count, *y = x + count;
    for (int64_t i = 0; i < count; ++i) x[i] = from[2 * i], y[i] = from[2 * i + 1];
  }
  return columns;
}

// Finds the nearest point of the second set for each point of the first, in every pair of sets.
template <typename T>
void nearest(const Buffer<T>& first, int64_t n, const Buffer<T>& second, int64_t m, int64_t sets,
             T* distance, int64_t* index) {
  const int64_t tasks_per_set = divide_up(n, kPointsPerTask);
  const int64_t pairs = std::min(n, kPointsPerTask) * std::max<int64_t>(1, m);
  const auto kernel = DETOPS_IN_USE(nearest_points<T>);
  parallel_each(sets * tasks_per_set, grain_for(kPairsPerThread, pairs), [&](int64_t task) {
    const int64_t b = task / tasks_per_set, begin = task % tasks_per_set * kPointsPerTask,
                  at = b * n + begin;
    const T *own = first.data() + b * n + at, *other = second.data() + 2 * b * m;
    kernel(own, own + n, std::min(kPointsPerTask, n - begin), other, other + m, m, distance + at,
           index + at);
  });
}

// Computes the gradient of each point's own distance with respect to that point or, with
// `to_other`, to its nearest point. The pass over own points comes first: CUDA, with one thread per
// point, adds in the same order.
template <bool to_other, typename T>
void nearest_gradient(const T* grad, const math::Point<T>* own, int64_t n,
                      const math::Point<T>* other, int64_t m, const int64_t* index,
                      math::Point<T>* to) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t k = index[i];
    if (!to_other) to[i] = {0, 0};
    if (k < 0 || k >= m) continue;
    if constexpr (to_other) {
      math::square_distance_gradient(other[k], own[i], grad[i], to[k]);
    } else {
      math::square_distance_gradient(own[i], other[k], grad[i], to[i]);
    }
  }
}

}  // namespace

void chamfer_distance_forward(const Tensor& points1, const Tensor& points2, Tensor& dist1,
                              Tensor& dist2, Tensor& idx1, Tensor& idx2) {
  const PointSets points(points1, points2, dist1.scalar_type());
  const int64_t sets = points.sets, n = points.n, m = points.m;
  DETOPS_WIDE_SWITCH(dist1.scalar_type(), [&] {
    const auto a = to_columns(points.first.const_data_ptr<scalar_t>(), sets, n);
    const auto b = to_columns(points.second.const_data_ptr<scalar_t>(), sets, m);
    nearest(a, n, b, m, sets, dist1.mutable_data_ptr<scalar_t>(), idx1.mutable_data_ptr<int64_t>());
    nearest(b, m, a, n, sets, dist2.mutable_data_ptr<scalar_t>(), idx2.mutable_data_ptr<int64_t>());
  });
}

void chamfer_distance_backward(const Tensor& grad1, const Tensor& grad2, const Tensor& points1,
                               const Tensor& points2, const Tensor& idx1, const Tensor& idx2,
                               Tensor& to_points1, Tensor& to_points2) {
  const PointSetGradients g(grad1, grad2, points1, points2, idx1, idx2);
  const int64_t n = g.n, m = g.m;
  DETOPS_WIDE_SWITCH(g.type(), [&] {
    const auto *g1 = elements<scalar_t>(g.grad_first), *g2 = elements<scalar_t>(g.grad_second);
    const auto *p1 = rows<math::Point, scalar_t>(g.first),
               *p2 = rows<math::Point, scalar_t>(g.second);
    const auto *i1 = elements<int64_t>(g.index_first), *i2 = elements<int64_t>(g.index_second);
    auto* t1 = mutable_rows<math::Point, scalar_t>(to_points1);
    auto* t2 = mutable_rows<math::Point, scalar_t>(to_points2);
    parallel_each(g.sets, grain_for(kPairsPerThread, n + m), [&](int64_t b) {
      const int64_t p = b * n, q = b * m;
      nearest_gradient<false>(g1 + p, p1 + p, n, p2 + q, m, i1 + p, t1 + p);
      nearest_gradient<false>(g2 + q, p2 + q, m, p1 + p, n, i2 + q, t2 + q);
      nearest_gradient<true>(g1 + p, p1 + p, n, p2 + q, m, i1 + p, t2 + q);
      nearest_gradient<true>(g2 + q, p2 + q, m, p1 + p, n, i2 + q, t1 + p);
    });
  });
}

}  // namespace detops::cpu
