// SPDX-License-Identifier: MIT
#include "../../math/deform.h"
#include "../common/sorted_samples.cuh"

namespace detops::cuda {
namespace {

template <typename T>
struct Sampling {
  const T* input;                 // [N, C, H, W]
  const accumulate_t<T>* points;  // [N, P, 2]
  int64_t images, channels, count;
  int height, width;

  Sampling(const Tensor& input, const Tensor& points)
      : input(elements(input)),
        points(elements(points)),
        images(input.size(0)),
        channels(input.size(1)),
        count(points.size(1)),
        height(static_cast<int>(input.size(2))),
        width(static_cast<int>(input.size(3))) {}

  __host__ __device__ int64_t pixels() const { return int64_t(height) * width; }
};

template <typename A>
struct LocatedPoint {
  math::attention::SampleLocation<A> place;
  math::attention::Corners<int> pixel;  // -1 off the map
};

// Returns point `at` of [N, P], flattened.
template <typename T, typename A = accumulate_t<T>>
__device__ LocatedPoint<A> locate_point(const Sampling<T>& s, int64_t at) {
  const auto place =
      math::attention::locate<A>(s.points[2 * at], s.points[2 * at + 1], A(s.width), A(s.height));
  return {place, math::attention::positions(static_cast<int>(place.x), static_cast<int>(place.y),
                                            s.width, s.height, 0)};
}

// One thread per point, which adds its channels in order. The cell of a point is an index into
// [N, H, W], or N * H * W if the point reads no pixel. Either result may be null.
template <typename T, typename A = accumulate_t<T>>
__global__ void point_gradient_kernel(Sampling<T> s, const T* grad, A* to_points,
                                      Vector<int, 2>* sample_cells) {
  const int64_t pixels = s.pixels();
  DETOPS_FOR_EACH(i, s.images * s.count) {
    const auto p = locate_point(s, i);
    if (sample_cells != nullptr) {
      const int corner = math::corner_cell(p.pixel.at);
      const int64_t cell = corner < 0 ? s.images * pixels : i / s.count * pixels + corner;
      sample_cells[i] = {{static_cast<int>(i), static_cast<int>(cell)}};
    }
    if (to_points == nullptr) continue;
    const int64_t first = i / s.count * s.channels;
    math::attention::Corners<A> product{};
    for (int64_t c = 0; c < s.channels; ++c) {
      const A g = A(grad[(first + c) * s.count + i % s.count]);
      const T* from = s.input + (first + c) * pixels;
      for (int k = 0; k < 4; ++k) {
        if (p.pixel.at[k] >= 0) product.at[k] += g * A(from[p.pixel.at[k]]);
      }
    }
    const auto to = math::attention::gradient<A>(p.place, A(1), A(s.width), A(s.height), product);
    to_points[2 * i] = to.x;
    to_points[2 * i + 1] = to.y;
  }
}

}  // namespace

void point_sample_forward(const Tensor& input, const Tensor& points, Tensor& output) {
  const Tensor maps = input.contiguous(), wide_points = wide(points, input.scalar_type());
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const Sampling<scalar_t> s(maps, wide_points);
    scalar_t* to = elements(output);
    // Adjacent threads handle adjacent points.
    for_each(output.numel(), [=] __device__(int64_t i) {
      const int64_t plane = i / s.count;
      const auto p = locate_point(s, plane / s.channels * s.count + i % s.count);
      const auto weight = math::attention::corner_weights<A>(p.place);
      const scalar_t* from = s.input + plane * s.pixels();
      A sum = 0;
      for (int k = 0; k < 4; ++k) {
        if (p.pixel.at[k] >= 0) sum += weight.at[k] * A(from[p.pixel.at[k]]);
      }
      to[i] = scalar_t(sum);
    });
  });
}

void point_sample_backward(const Tensor& grad, const Tensor& input, const Tensor& points,
                           bool input_wanted, bool points_wanted, Tensor& to_input,
                           Tensor& to_points) {
  const ScalarType type = input.scalar_type();
  const Tensor maps = input.contiguous(), wide_points = wide(points, type);
  const Tensor upstream = grad.to(type).contiguous();
  const int64_t samples = points.size(0) * points.size(1);
  const bool needs_sort = input_wanted && to_input.numel() > 0;
  const Tensor sample_cells =
      needs_sort ? empty({narrow(samples), 2}, input.options().dtype(kInt)) : Tensor();
  DETOPS_FLOAT_SWITCH(type, [&] {
    const Sampling<scalar_t> s(maps, wide_points);
    if (samples > 0) {
      launch(point_gradient_kernel<scalar_t>, blocks_for(samples), s, upstream,
             points_wanted ? to_points : Tensor(), sample_cells);
    }
    if (!needs_sort) return;
    const SortedSamples sorted = sort_samples(sample_cells, narrow(s.images * s.pixels()));
    using A = accumulate_t<scalar_t>;
    const Vector<int, 2>* order = elements(sorted.order);
    const int* begin = elements(sorted.begin);
    const scalar_t* g = elements(upstream);
    scalar_t* to = elements(to_input);
    // A thread owns a pixel of a plane and adds the points of the cells around it, in order.
    for_each(to_input.numel(), [=] __device__(int64_t i) {
      const int64_t plane = i / s.pixels(), image = plane / s.channels;
      const int pixel = static_cast<int>(i % s.pixels()), y = pixel / s.width, x = pixel % s.width;
      A sum = 0;
      visit_samples(begin, image * s.pixels() + pixel, y, x, s.width, [&](int j, int) {
        const int index = order[j].at[0];
        const auto p = locate_point(s, index);
        const auto weight = math::attention::corner_weights<A>(p.place);
        for (int k = 0; k < 4; ++k) {
          if (p.pixel.at[k] != pixel) continue;
          sum += weight.at[k] * A(g[plane * s.count + index % s.count]);
        }
      });
      to[i] = scalar_t(sum);
    });
  });
}

}  // namespace detops::cuda
