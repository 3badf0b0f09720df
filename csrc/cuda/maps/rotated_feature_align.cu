// SPDX-License-Identifier: MIT
#include "../../math/rotated_box.h"

#include "../deform/sorted_samples.cuh"

namespace detops::cuda {
namespace {

// (y, x) of each of a pixel's samples, and where there is a gradient to come, their cells: the
// upper left of a sample's pixels, or the number of all pixels where it does not count.
template <typename A>
__global__ void box_points_kernel(Maps maps, int64_t points, const A* boxes, A spatial_scale,
                                  A* places, int* cell) {
  const int64_t pixels = maps.pixels();
  DETOPS_FOR_EACH(i, maps.n * pixels) {
    int64_t s = i * points;
    math::visit_box_points(boxes + 5 * i, spatial_scale, points, [&](A y, A x) {
      places[2 * s] = y;
      places[2 * s + 1] = x;
      if (cell != nullptr) {
        math::Taps<A> rows, cols;
        const bool counts =
            math::bilinear_taps(y, maps.h, rows) && math::bilinear_taps(x, maps.w, cols);
        cell[s] = static_cast<int>(counts ? i / pixels * pixels + rows.low * maps.w + cols.low
                                          : maps.n * pixels);
      }
      ++s;
    });
  }
}

template <typename A, typename Visit>
__device__ void visit_sample(const Maps& maps, const A* place, const Visit& visit) {
  math::Taps<A> rows, cols;
  if (math::bilinear_taps(place[0], maps.h, rows) && math::bilinear_taps(place[1], maps.w, cols)) {
    math::visit_corners(rows, cols, visit);
  }
}

// A thread per element.
template <typename T, typename A>
__global__ void rotated_feature_align_kernel(Maps maps, int64_t points, const A* places,
                                             const T* features, T* output) {
  const Strides& s = maps.strides;
  DETOPS_FOR_EACH(i, maps.elements()) {
    const Position at = maps.position(i);
    const T* plane = features + s.at(at.n, at.c, 0, 0);
    const A* place = places + ((at.n * maps.h + at.h) * maps.w + at.w) * points * 2;
    A sum = static_cast<A>(features[i]);
    for (int64_t p = 0; p < points; ++p, place += 2) {
      visit_sample(maps, place, [&](int64_t row, int64_t col, A weight) {
        sum += weight * static_cast<A>(plane[row * s.h + col * s.w]);
      });
    }
    output[i] = static_cast<T>(sum);
  }
}

// A thread owns an element, and adds the samples of the cells around it in their order.
template <typename T, typename A>
__global__ void rotated_feature_align_backward_kernel(Maps maps, int64_t points, const A* places,
                                                      const int64_t* order, const int* begin,
                                                      const T* grad, T* to_features) {
  DETOPS_FOR_EACH(i, maps.elements()) {
    const Position at = maps.position(i);
    const T* plane = grad + maps.strides.at(at.n, at.c, 0, 0);
    const int64_t pixel = (at.n * maps.h + at.h) * maps.w + at.w;
    A sum = static_cast<A>(grad[i]);
    visit_samples(begin, pixel, static_cast<int>(at.h), static_cast<int>(at.w),
                  static_cast<int>(maps.w), [&](int j, int) {
                    const int64_t s = order[j];
                    const int64_t from = s / points % maps.pixels();
                    const A g = static_cast<A>(plane[from * maps.strides.w]);
                    visit_sample(maps, places + 2 * s, [&](int64_t row, int64_t col, A weight) {
                      if (row == at.h && col == at.w) sum += weight * g;
                    });
                  });
    to_features[i] = static_cast<T>(sum);
  }
}

}  // namespace

void rotated_feature_align_forward(const Tensor& features, const Tensor& boxes,
                                   double spatial_scale, int64_t points, Tensor& output) {
  const Tensor in = features.contiguous(output.suggest_memory_format());
  const Tensor wide_boxes = wide(boxes, features.scalar_type());
  const Maps maps = maps_of(in);
  const int64_t pixels = maps.n * maps.pixels();
  const Tensor places = empty({pixels * points, 2}, wide_boxes.options());
  DETOPS_FLOAT_SWITCH(features.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    launch(box_points_kernel<A>, blocks_for(pixels), maps, points, wide_boxes, spatial_scale,
           places, nullptr);
    launch(rotated_feature_align_kernel<scalar_t, A>, blocks_for(output.numel()), maps, points,
           places, in, output);
  });
}

void rotated_feature_align_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                    int64_t points, Tensor& to_features) {
  const Tensor outer = grad.contiguous(to_features.suggest_memory_format());
  const Tensor wide_boxes = wide(boxes, grad.scalar_type());
  const Maps maps = maps_of(outer);
  const int64_t pixels = maps.n * maps.pixels();
  const Tensor places = empty({pixels * points, 2}, wide_boxes.options());
  const Tensor cell = empty({narrow(pixels * points)}, wide_boxes.options().dtype(kInt));
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    launch(box_points_kernel<A>, blocks_for(pixels), maps, points, wide_boxes, spatial_scale,
           places, cell);
    const SortedSamples sorted = sort_samples(cell, narrow(pixels));
    launch(rotated_feature_align_backward_kernel<scalar_t, A>, blocks_for(to_features.numel()),
           maps, points, places, sorted.order, sorted.begin, outer, to_features);
  });
}

}  // namespace detops::cuda
