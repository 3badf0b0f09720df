// SPDX-License-Identifier: MIT
#include "../../boxes/box_lists.h"
#include "../../math/chamfer_distance.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

// From each of n points of each set to the nearest of the m others.
template <typename T>
__global__ void nearest_kernel(const math::Point<T>* own, int64_t n, const math::Point<T>* other,
                               int64_t m, int64_t sets, T* distance, int64_t* index) {
  DETOPS_FOR_EACH(i, sets * n) {
    const math::Point<T> point = own[i];
    const math::Point<T>* others = other + i / n * m;
    T least = std::numeric_limits<T>::infinity();
    int64_t where = -1;
    for (int64_t j = 0; j < m; ++j) {
      const T d = math::square_distance(point, others[j]);
      if (d < least) least = d, where = j;
    }
    distance[i] = least;
    index[i] = where;
  }
}

// A thread has a point: its own distance, then in order those of the others that it is nearest to.
template <typename T>
__global__ void chamfer_backward_kernel(const T* grad_own, const T* grad_other,
                                        const math::Point<T>* own, int64_t n,
                                        const math::Point<T>* other, int64_t m, int64_t sets,
                                        const int64_t* index_own, const int64_t* index_other,
                                        math::Point<T>* to_own) {
  DETOPS_FOR_EACH(i, sets * n) {
    const int64_t set = i / n, place = i - set * n, nearest = index_own[i];
    const math::Point<T> point = own[i];
    math::Point<T> to{0, 0};
    if (nearest >= 0 && nearest < m) {
      math::square_distance_gradient(point, other[set * m + nearest], grad_own[i], to);
    }
    for (int64_t j = set * m; j < (set + 1) * m; ++j) {
      if (index_other[j] == place) {
        math::square_distance_gradient(point, other[j], grad_other[j], to);
      }
    }
    to_own[i] = to;
  }
}

}  // namespace

void chamfer_distance_forward(const Tensor& points1, const Tensor& points2, Tensor& dist1,
                              Tensor& dist2, Tensor& idx1, Tensor& idx2) {
  const PointSets points(points1, points2, dist1.scalar_type());
  const int64_t sets = points.sets, n = points.n, m = points.m;
  DETOPS_WIDE_SWITCH(dist1.scalar_type(), [&] {
    using T = scalar_t;
    const auto *a = rows<math::Point, T>(points.first), *b = rows<math::Point, T>(points.second);
    if (n > 0) {
      launch("chamfer_distance", nearest_kernel<T>, blocks_for(sets * n), a, n, b, m, sets,
             dist1.mutable_data_ptr<T>(), idx1.mutable_data_ptr<int64_t>());
    }
    if (m > 0) {
      launch("chamfer_distance", nearest_kernel<T>, blocks_for(sets * m), b, m, a, n, sets,
             dist2.mutable_data_ptr<T>(), idx2.mutable_data_ptr<int64_t>());
    }
  });
}

void chamfer_distance_backward(const Tensor& grad1, const Tensor& grad2, const Tensor& points1,
                               const Tensor& points2, const Tensor& idx1, const Tensor& idx2,
                               Tensor& to_points1, Tensor& to_points2) {
  const PointSetGradients g(grad1, grad2, points1, points2, idx1, idx2, to_points1, to_points2);
  const int64_t sets = g.sets, n = g.n, m = g.m;
  DETOPS_WIDE_SWITCH(g.type(), [&] {
    using T = scalar_t;
    const auto *a = rows<math::Point, T>(g.first), *b = rows<math::Point, T>(g.second);
    const T *g1 = g.grad_first.const_data_ptr<T>(), *g2 = g.grad_second.const_data_ptr<T>();
    const int64_t* i1 = g.index_first.const_data_ptr<int64_t>();
    const int64_t* i2 = g.index_second.const_data_ptr<int64_t>();
    if (n > 0) {
      launch("chamfer_distance_backward", chamfer_backward_kernel<T>, blocks_for(sets * n), g1, g2,
             a, n, b, m, sets, i1, i2, mutable_rows<math::Point, T>(g.to_first));
    }
    if (m > 0) {
      launch("chamfer_distance_backward", chamfer_backward_kernel<T>, blocks_for(sets * m), g2, g1,
             b, m, a, n, sets, i2, i1, mutable_rows<math::Point, T>(g.to_second));
    }
  });
  g.store(to_points1, to_points2);
}

}  // namespace detops::cuda
