// SPDX-License-Identifier: MIT
#include "../../math/rotated_box.h"

#include "../common/sorted_samples.cuh"

namespace detops::cuda {
namespace {

// Returns (y, x) of all samples of each pixel. For the backward pass, also stores their cells in
// `sample_cells`: the upper left pixel of a sample, or the number of pixels of all images if it
// does not count. `sample_cells` may be null.
template <typename A>
Tensor box_points(const FeatureMaps& maps, int64_t points, const Tensor& boxes,
                  double spatial_scale, Vector<int, 2>* sample_cells) {
  const int64_t pixels = maps.pixels();
  const Tensor positions = empty({maps.n * pixels * points, 2}, boxes.options());
  const A* box = elements(boxes);
  A* position = elements(positions);
  for_each(maps.n * pixels, [=] __device__(int64_t i) {
    int64_t s = i * points;
    math::visit_box_points(box + 5 * i, A(spatial_scale), points, [&](A y, A x) {
      position[2 * s] = y;
      position[2 * s + 1] = x;
      if (sample_cells != nullptr) {
        math::Taps<A> rows, cols;
        const bool counts =
            math::bilinear_taps(y, maps.h, rows) && math::bilinear_taps(x, maps.w, cols);
        const int64_t cell =
            counts ? i / pixels * pixels + rows.low * maps.w + cols.low : maps.n * pixels;
        sample_cells[s] = {{static_cast<int>(s), static_cast<int>(cell)}};
      }
      ++s;
    });
  });
  return positions;
}

}  // namespace

void rotated_feature_align_forward(const Tensor& features, const Tensor& boxes,
                                   double spatial_scale, int64_t points, Tensor& output) {
  const Tensor in = features.contiguous(output.suggest_memory_format());
  const Tensor wide_boxes = wide(boxes, features.scalar_type());
  const FeatureMaps maps = maps_of(in);
  DETOPS_FLOAT_SWITCH(features.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const Tensor positions = box_points<A>(maps, points, wide_boxes, spatial_scale, nullptr);
    const A* all = elements(positions);
    const scalar_t* feature = elements(in);
    scalar_t* to = elements(output);
    for_each(output.numel(), [=] __device__(int64_t i) {
      const Strides& s = maps.strides;
      const Position at = maps.position(i);
      const scalar_t* plane = feature + s.at(at.n, at.c, 0, 0);
      const A* position = all + ((at.n * maps.h + at.h) * maps.w + at.w) * points * 2;
      A sum = static_cast<A>(feature[i]);
      for (int64_t p = 0; p < points; ++p, position += 2) {
        const auto add = [&](int64_t row, int64_t col, A weight) {
          sum += weight * static_cast<A>(plane[row * s.h + col * s.w]);
        };
        math::visit_corners(position[0], position[1], maps.h, maps.w, add);
      }
      to[i] = static_cast<scalar_t>(sum);
    });
  });
}

void rotated_feature_align_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                    int64_t points, Tensor& to_features) {
  const Tensor upstream = grad.contiguous(to_features.suggest_memory_format());
  const Tensor wide_boxes = wide(boxes, grad.scalar_type());
  const FeatureMaps maps = maps_of(upstream);
  const int64_t pixels = maps.n * maps.pixels();
  const Tensor sample_cells = empty({narrow(pixels * points), 2}, wide_boxes.options().dtype(kInt));
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const Tensor positions =
        box_points<A>(maps, points, wide_boxes, spatial_scale, elements(sample_cells));
    const SortedSamples sorted = sort_samples(sample_cells, narrow(pixels));
    const Vector<int, 2>* order = elements(sorted.order);
    const int* begin = elements(sorted.begin);
    const A* position = elements(positions);
    const scalar_t* grads = elements(upstream);
    scalar_t* to = elements(to_features);
    // A thread owns an element and adds the samples of the cells around it, in order.
    for_each(to_features.numel(), [=] __device__(int64_t i) {
      const Position at = maps.position(i);
      const scalar_t* plane = grads + maps.strides.at(at.n, at.c, 0, 0);
      const int64_t pixel = (at.n * maps.h + at.h) * maps.w + at.w;
      A sum = static_cast<A>(grads[i]);
      visit_samples(begin, pixel, static_cast<int>(at.h), static_cast<int>(at.w),
                    static_cast<int>(maps.w), [&](int j, int) {
                      const int64_t s = order[j].at[0], from = s / points % maps.pixels();
                      const A g = static_cast<A>(plane[from * maps.strides.w]);
                      const auto add = [&](int64_t row, int64_t col, A weight) {
                        if (row == at.h && col == at.w) sum += weight * g;
                      };
                      math::visit_corners(position[2 * s], position[2 * s + 1], maps.h, maps.w,
                                          add);
                    });
      to[i] = static_cast<scalar_t>(sum);
    });
  });
}

}  // namespace detops::cuda
