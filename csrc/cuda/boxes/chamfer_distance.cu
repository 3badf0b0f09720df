// SPDX-License-Identifier: MIT
#include "../../math/chamfer_distance.h"
#include "../../ops.h"
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
  const ScalarType type = dist1.scalar_type();
  const Tensor first = as_type(points1, type).contiguous();
  const Tensor second = as_type(points2, type).contiguous();
  const int64_t sets = first.size(0), n = first.size(1), m = second.size(1);
  DETOPS_WIDE_SWITCH(type, [&] {
    using T = scalar_t;
    const auto *a = rows<math::Point, T>(first), *b = rows<math::Point, T>(second);
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
  const ScalarType type = compute_type(points1, points2);
  const Tensor first = as_type(points1, type).contiguous();
  const Tensor second = as_type(points2, type).contiguous();
  const Tensor outer1 = as_type(grad1, type).contiguous();
  const Tensor outer2 = as_type(grad2, type).contiguous();
  const Tensor index1 = idx1.contiguous(), index2 = idx2.contiguous();
  const Tensor to_first = as_type(to_points1, type), to_second = as_type(to_points2, type);
  const int64_t sets = first.size(0), n = first.size(1), m = second.size(1);
  DETOPS_WIDE_SWITCH(type, [&] {
    using T = scalar_t;
    const auto *a = rows<math::Point, T>(first), *b = rows<math::Point, T>(second);
    const T *g1 = outer1.const_data_ptr<T>(), *g2 = outer2.const_data_ptr<T>();
    const int64_t* i1 = index1.const_data_ptr<int64_t>();
    const int64_t* i2 = index2.const_data_ptr<int64_t>();
    if (n > 0) {
      launch("chamfer_distance_backward", chamfer_backward_kernel<T>, blocks_for(sets * n), g1, g2,
             a, n, b, m, sets, i1, i2, mutable_rows<math::Point, T>(to_first));
    }
    if (m > 0) {
      launch("chamfer_distance_backward", chamfer_backward_kernel<T>, blocks_for(sets * m), g2, g1,
             b, m, a, n, sets, i2, i1, mutable_rows<math::Point, T>(to_second));
    }
  });
  to_points1 = as_type(to_first, to_points1.scalar_type());
  to_points2 = as_type(to_second, to_points2.scalar_type());
}

}  // namespace detops::cuda
