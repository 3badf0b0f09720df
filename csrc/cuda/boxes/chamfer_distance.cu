// SPDX-License-Identifier: MIT
#include "../../host/box_lists.h"
#include "../../math/chamfer_distance.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

// Finds the nearest of the m other points for each of the n points of each set.
template <typename T>
__global__ void nearest_kernel(const math::Point<T>* own, int64_t n, const math::Point<T>* other,
                               int64_t m, int64_t sets, T* distance, int64_t* index) {
  DETOPS_FOR_EACH(i, sets * n) {
    const math::Point<T> point = own[i];
    const math::Point<T>* others = other + i / n * m;
    T min_distance = std::numeric_limits<T>::infinity();
    int64_t nearest = -1;
    for (int64_t j = 0; j < m; ++j) {
      const T d = math::square_distance(point, others[j]);
      if (d < min_distance) min_distance = d, nearest = j;
    }
    distance[i] = min_distance;
    index[i] = nearest;
  }
}

// One thread per point: adds the gradient of its own distance, then in order the gradients of the
// other points that have it as their nearest point.
template <typename T>
__global__ void chamfer_backward_kernel(const T* grad_own, const T* grad_other,
                                        const math::Point<T>* own, int64_t n,
                                        const math::Point<T>* other, int64_t m, int64_t sets,
                                        const int64_t* index_own, const int64_t* index_other,
                                        math::Point<T>* to_own) {
  DETOPS_FOR_EACH(i, sets * n) {
    const int64_t set = i / n, index_in_set = i - set * n, nearest = index_own[i];
    const math::Point<T> point = own[i];
    math::Point<T> to{0, 0};
    if (nearest >= 0 && nearest < m) {
      math::square_distance_gradient(point, other[set * m + nearest], grad_own[i], to);
    }
    for (int64_t j = set * m; j < (set + 1) * m; ++j) {
      if (index_other[j] == index_in_set) {
        math::square_distance_gradient(point, other[j], grad_other[j], to);
      }
    }
    to_own[i] = to;
  }
}

}  // namespace

void chamfer_distance_forward(const Tensor& points1, const Tensor& points2, Tensor& dist1,
                              Tensor& dist2, Tensor& idx1, Tensor& idx2) {
  const PointSets p(points1, points2, dist1.scalar_type());
  DETOPS_WIDE_SWITCH(dist1.scalar_type(), [&] {
    launch(nearest_kernel<scalar_t>, blocks_for(dist1.numel()), p.first, p.n, p.second, p.m, p.sets,
           dist1, idx1);
    launch(nearest_kernel<scalar_t>, blocks_for(dist2.numel()), p.second, p.m, p.first, p.n, p.sets,
           dist2, idx2);
  });
}

void chamfer_distance_backward(const Tensor& grad1, const Tensor& grad2, const Tensor& points1,
                               const Tensor& points2, const Tensor& idx1, const Tensor& idx2,
                               Tensor& to_points1, Tensor& to_points2) {
  const PointSetGradients g(grad1, grad2, points1, points2, idx1, idx2);
  DETOPS_WIDE_SWITCH(g.type(), [&] {
    launch(chamfer_backward_kernel<scalar_t>, blocks_for(g.sets * g.n), g.grad_first, g.grad_second,
           g.first, g.n, g.second, g.m, g.sets, g.index_first, g.index_second, to_points1);
    launch(chamfer_backward_kernel<scalar_t>, blocks_for(g.sets * g.m), g.grad_second, g.grad_first,
           g.second, g.m, g.first, g.n, g.sets, g.index_second, g.index_first, to_points2);
  });
}

}  // namespace detops::cuda
