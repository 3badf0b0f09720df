// SPDX-License-Identifier: MIT
#include "../../math/rotated_box.h"

#include "../../ops.h"
#include "../common/launch.cuh"
#include "../deform/sorted_samples.cuh"

namespace detops::cuda {
namespace {

// Of [N, C, H, W] in either layout, whose pixels have `points` samples each.
struct Refinement {
  int64_t images, channels, height, width, points;
  bool channels_last;

  Refinement(const Tensor& maps, int64_t points)
      : images(maps.size(0)),
        channels(maps.size(1)),
        height(maps.size(2)),
        width(maps.size(3)),
        points(points),
        channels_last(is_channels_last(maps)) {}

  __host__ __device__ int64_t pixels() const { return height * width; }
  __host__ __device__ int64_t samples() const { return images * pixels() * points; }
  __device__ Position position(int64_t i) const {
    return position_of(i, channels_last, channels, height, width);
  }
  // Pixel 0 of the plane of element i, and how far its pixels are apart.
  __device__ int64_t plane(const Position& at) const {
    return (at.n * channels * pixels()) + at.c * (channels_last ? 1 : pixels());
  }
  __device__ int64_t apart() const { return channels_last ? channels : 1; }
};

// (y, x) of each sample, and where there is a gradient to come, its cell: the upper left of its
// pixels, or their number where it does not count.
template <typename A>
__global__ void box_points_kernel(Refinement r, const A* boxes, A spatial_scale, A* places,
                                  int* cell) {
  DETOPS_FOR_EACH(i, r.images * r.pixels()) {
    int64_t s = i * r.points;
    math::visit_box_points(boxes + 5 * i, spatial_scale, r.points, [&](A y, A x) {
      places[2 * s] = y;
      places[2 * s + 1] = x;
      if (cell != nullptr) {
        math::Taps<A> rows, cols;
        const bool counts =
            math::bilinear_taps(y, r.height, rows) && math::bilinear_taps(x, r.width, cols);
        const int64_t first = i / r.pixels() * r.pixels();
        cell[s] = static_cast<int>(counts ? first + rows.low * r.width + cols.low
                                          : r.images * r.pixels());
      }
      ++s;
    });
  }
}

template <typename A, typename Visit>
__device__ void visit_sample(const Refinement& r, const A* place, const Visit& visit) {
  math::Taps<A> rows, cols;
  if (math::bilinear_taps(place[0], r.height, rows) &&
      math::bilinear_taps(place[1], r.width, cols)) {
    math::visit_corners(rows, cols, visit);
  }
}

// A thread per element.
template <typename T, typename A>
__global__ void rotated_feature_align_kernel(Refinement r, const A* places, const T* features,
                                             T* output) {
  DETOPS_FOR_EACH(i, r.images * r.channels * r.pixels()) {
    const Position at = r.position(i);
    const T* plane = features + r.plane(at);
    const A* place = places + ((at.n * r.height + at.h) * r.width + at.w) * r.points * 2;
    A sum = static_cast<A>(features[i]);
    for (int64_t p = 0; p < r.points; ++p, place += 2) {
      visit_sample(r, place, [&](int64_t row, int64_t col, A weight) {
        sum += weight * static_cast<A>(plane[(row * r.width + col) * r.apart()]);
      });
    }
    output[i] = static_cast<T>(sum);
  }
}

// A thread owns an element, and adds the samples of the cells around it in their order.
template <typename T, typename A>
__global__ void rotated_feature_align_backward_kernel(Refinement r, const A* places,
                                                      const int64_t* order, const int* begin,
                                                      const T* grad, T* to_features) {
  DETOPS_FOR_EACH(i, r.images * r.channels * r.pixels()) {
    const Position at = r.position(i);
    const T* plane = grad + r.plane(at);
    const int64_t pixel = at.h * r.width + at.w;
    A sum = static_cast<A>(grad[i]);
    visit_samples(begin, at.n * r.pixels() + pixel, static_cast<int>(at.h), static_cast<int>(at.w),
                  static_cast<int>(r.width), [&](int j, int) {
                    const int64_t s = order[j];
                    const A g = static_cast<A>(plane[s / r.points % r.pixels() * r.apart()]);
                    visit_sample(r, places + 2 * s, [&](int64_t row, int64_t col, A weight) {
                      if (row == at.h && col == at.w) sum += weight * g;
                    });
                  });
    to_features[i] = static_cast<T>(sum);
  }
}

}  // namespace

void rotated_feature_align_forward(const Tensor& features, const Tensor& boxes,
                                   double spatial_scale, int64_t points, Tensor& output) {
  constexpr const char* kOp = "rotated_feature_align";
  const Tensor maps = features.contiguous(output.suggest_memory_format());
  const Tensor wide_boxes = wide(boxes, features.scalar_type());
  const Refinement r(maps, points);
  const Tensor places = empty({r.samples(), 2}, wide_boxes.options());
  DETOPS_FLOAT_SWITCH(features.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    launch(kOp, box_points_kernel<A>, blocks_for(r.images * r.pixels()), r,
           wide_boxes.const_data_ptr<A>(), static_cast<A>(spatial_scale),
           places.mutable_data_ptr<A>(), nullptr);
    launch(kOp, rotated_feature_align_kernel<scalar_t, A>, blocks_for(output.numel()), r,
           places.const_data_ptr<A>(), maps.const_data_ptr<scalar_t>(),
           output.mutable_data_ptr<scalar_t>());
  });
}

void rotated_feature_align_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                    int64_t points, Tensor& to_features) {
  constexpr const char* kOp = "rotated_feature_align_backward";
  const Tensor outer = grad.contiguous(to_features.suggest_memory_format());
  const Tensor wide_boxes = wide(boxes, grad.scalar_type());
  const Refinement r(outer, points);
  const Tensor places = empty({r.samples(), 2}, wide_boxes.options());
  const Tensor cell = empty({narrow(kOp, r.samples())}, wide_boxes.options().dtype(kInt));
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    launch(kOp, box_points_kernel<A>, blocks_for(r.images * r.pixels()), r,
           wide_boxes.const_data_ptr<A>(), static_cast<A>(spatial_scale),
           places.mutable_data_ptr<A>(), cell.mutable_data_ptr<int>());
    const SortedSamples sorted = sort_samples(cell, narrow(kOp, r.images * r.pixels()));
    launch(kOp, rotated_feature_align_backward_kernel<scalar_t, A>, blocks_for(to_features.numel()),
           r, places.const_data_ptr<A>(), sorted.order.const_data_ptr<int64_t>(),
           sorted.begin.const_data_ptr<int>(), outer.const_data_ptr<scalar_t>(),
           to_features.mutable_data_ptr<scalar_t>());
  });
}

}  // namespace detops::cuda
