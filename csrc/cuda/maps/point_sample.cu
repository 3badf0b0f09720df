// SPDX-License-Identifier: MIT
#include "../../math/deform.h"
#include "../../ops.h"
#include "../common/launch.cuh"
#include "../deform/sorted_samples.cuh"

namespace detops::cuda {
namespace {

template <typename T>
struct Sampling {
  const T* input;                 // [N, C, H, W]
  const accumulate_t<T>* points;  // [N, P, 2]
  int64_t images, channels, count;
  int height, width;

  __host__ __device__ int64_t pixels() const { return int64_t(height) * width; }
  __host__ __device__ int64_t samples() const { return images * count; }
};

template <typename A>
struct PlacedPoint {
  math::attention::Place<A> place;
  math::attention::Corners<int> pixel;  // -1 off the map
};

// Number `at` of [N, P].
template <typename T, typename A = accumulate_t<T>>
__device__ PlacedPoint<A> placed_point(const Sampling<T>& s, int64_t at) {
  const auto place =
      math::attention::place<A>(s.points[2 * at], s.points[2 * at + 1], A(s.width), A(s.height));
  return {place, math::attention::positions(static_cast<int>(place.x), static_cast<int>(place.y),
                                            s.width, s.height, 0)};
}

// A thread per element of the output; neighbours are neighbouring points.
template <typename T>
__global__ void point_sample_kernel(Sampling<T> s, T* output) {
  using A = accumulate_t<T>;
  DETOPS_FOR_EACH(i, s.images * s.channels * s.count) {
    const int64_t plane = i / s.count;
    const auto p = placed_point(s, plane / s.channels * s.count + i % s.count);
    const auto share = math::attention::shares<A>(p.place);
    const T* from = s.input + plane * s.pixels();
    A sum = 0;
    for (int k = 0; k < 4; ++k) {
      if (p.pixel.at[k] >= 0) sum += share.at[k] * A(from[p.pixel.at[k]]);
    }
    output[i] = T(sum);
  }
}

// A thread per point, which adds its channels in order.
template <typename T>
__global__ void point_gradient_kernel(Sampling<T> s, const T* grad, accumulate_t<T>* to_points) {
  using A = accumulate_t<T>;
  DETOPS_FOR_EACH(i, s.samples()) {
    const auto p = placed_point(s, i);
    const int64_t first = i / s.count * s.channels;
    math::attention::Corners<A> product{};
    for (int64_t c = 0; c < s.channels; ++c) {
      const A g = A(grad[(first + c) * s.count + i % s.count]);
      const T* from = s.input + (first + c) * s.pixels();
      for (int k = 0; k < 4; ++k) {
        if (p.pixel.at[k] >= 0) product.at[k] += g * A(from[p.pixel.at[k]]);
      }
    }
    const auto to = math::attention::gradient<A>(p.place, A(1), A(s.width), A(s.height), product);
    to_points[2 * i] = to.x;
    to_points[2 * i + 1] = to.y;
  }
}

// The cell of each point: of [N, H, W], or their number where none counts.
template <typename T>
__global__ void point_cells_kernel(Sampling<T> s, int* cell) {
  DETOPS_FOR_EACH(i, s.samples()) {
    const auto p = placed_point(s, i);
    const int corner = math::cell_of(p.pixel.at);
    const int64_t pixels = s.pixels();
    cell[i] = static_cast<int>(corner < 0 ? s.images * pixels : i / s.count * pixels + corner);
  }
}

// A thread owns a pixel of a plane, and adds the points of the cells around it in their order.
template <typename T>
__global__ void map_gradient_kernel(Sampling<T> s, const T* grad, const int64_t* order,
                                    const int* begin, T* to_input) {
  using A = accumulate_t<T>;
  const int64_t pixels = s.pixels();
  DETOPS_FOR_EACH(i, s.images * s.channels * pixels) {
    const int64_t plane = i / pixels, image = plane / s.channels;
    const int pixel = static_cast<int>(i % pixels), y = pixel / s.width, x = pixel % s.width;
    A sum = 0;
    visit_samples(begin, image * pixels + pixel, y, x, s.width, [&](int j, int) {
      const auto p = placed_point(s, order[j]);
      const auto share = math::attention::shares<A>(p.place);
      for (int k = 0; k < 4; ++k) {
        if (p.pixel.at[k] != pixel) continue;
        sum += share.at[k] * A(grad[plane * s.count + order[j] % s.count]);
      }
    });
    to_input[i] = T(sum);
  }
}

template <typename T>
Sampling<T> sampling_of(const Tensor& input, const Tensor& points) {
  return {input.const_data_ptr<T>(),
          points.const_data_ptr<accumulate_t<T>>(),
          input.size(0),
          input.size(1),
          points.size(1),
          static_cast<int>(input.size(2)),
          static_cast<int>(input.size(3))};
}

}  // namespace

void point_sample_forward(const Tensor& input, const Tensor& points, Tensor& output) {
  const Tensor maps = input.contiguous(), places = wide(points, input.scalar_type());
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    launch("point_sample", point_sample_kernel<scalar_t>, blocks_for(output.numel()),
           sampling_of<scalar_t>(maps, places), output.mutable_data_ptr<scalar_t>());
  });
}

void point_sample_backward(const Tensor& grad, const Tensor& input, const Tensor& points,
                           bool input_wanted, bool points_wanted, Tensor& to_input,
                           Tensor& to_points) {
  constexpr const char* kOp = "point_sample_backward";
  const ScalarType type = input.scalar_type();
  const Tensor maps = input.contiguous(), places = wide(points, type);
  const Tensor outer = as_type(grad, type).contiguous();
  const Tensor slopes = as_type(to_points, compute_type(type));  // itself, unless of another dtype
  DETOPS_FLOAT_SWITCH(type, [&] {
    const auto s = sampling_of<scalar_t>(maps, places);
    const scalar_t* g = outer.const_data_ptr<scalar_t>();
    if (points_wanted && s.samples() > 0) {
      launch(kOp, point_gradient_kernel<scalar_t>, blocks_for(s.samples()), s, g,
             slopes.mutable_data_ptr<accumulate_t<scalar_t>>());
    }
    if (!input_wanted || to_input.numel() == 0) return;
    const Tensor cell = empty({narrow(kOp, s.samples())}, input.options().dtype(kInt));
    if (s.samples() > 0) {
      launch(kOp, point_cells_kernel<scalar_t>, blocks_for(s.samples()), s,
             cell.mutable_data_ptr<int>());
    }
    const SortedSamples sorted = sort_samples(cell, narrow(kOp, s.images * s.pixels()));
    launch(kOp, map_gradient_kernel<scalar_t>, blocks_for(to_input.numel()), s, g,
           sorted.order.const_data_ptr<int64_t>(), sorted.begin.const_data_ptr<int>(),
           to_input.mutable_data_ptr<scalar_t>());
  });
  if (points_wanted) to_points = as_type(slopes, to_points.scalar_type());
}

}  // namespace detops::cuda
