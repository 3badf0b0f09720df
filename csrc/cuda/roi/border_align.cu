// SPDX-License-Identifier: MIT
#include "../../math/max_samples.h"
#include "../../ops.h"
#include "max_samples.cuh"

namespace detops::cuda {
namespace {

constexpr int64_t kBorders = 4;

// A thread has a border of one channel.
template <typename T, typename A>
__global__ void border_align_kernel(const T* input, const A* boxes, int64_t size, int64_t channels,
                                    int64_t count, int64_t height, int64_t width, int64_t pool_size,
                                    T* output, int32_t* argmax) {
  DETOPS_FOR_EACH(i, size) {
    const int64_t border = i % kBorders, k = i / kBorders % count;
    const int64_t c = i / kBorders / count % channels, image = i / kBorders / count / channels;
    const T* map = input + ((image * kBorders + border) * channels + c) * height * width;
    const auto samples = math::border_of(boxes + (image * count + k) * 4, border, pool_size);
    const auto largest = math::largest_sample(
        samples.rows, samples.cols, height, width,
        [&](int64_t y, int64_t x) { return static_cast<A>(map[y * width + x]); });
    output[i] = static_cast<T>(largest.value);
    // Of one line, all samples have the number 0.
    argmax[i] = static_cast<int32_t>(math::max(largest.row, largest.col));
  }
}

// Items are borders of boxes, as they lie in memory.
template <typename T, typename A_>
struct BorderMaxima {
  using A = A_;
  const T* grads;
  const A* boxes;
  const int32_t* argmax;
  int64_t count, pool_size, maps, channels, height, width;
  Strides strides;
  int64_t bins = 1;
  bool channels_last = false;

  __device__ int64_t offset(int64_t map) const { return map * strides.n; }
  __device__ int64_t image(int64_t item) const { return item / kBorders / count; }
  __device__ int64_t place(int64_t item, int64_t c) const {
    return item + (image(item) * (channels - 1) + c) * count * kBorders;
  }
  __device__ A y(int64_t item, int64_t, int64_t c) const {
    A y, x;
    sample(item, c, y, x);
    return y;
  }
  __device__ A x(int64_t item, int64_t, int64_t c) const {
    A y, x;
    sample(item, c, y, x);
    return x;
  }
  __device__ A grad(int64_t item, int64_t, int64_t c) const {
    return static_cast<A>(grads[place(item, c)]);
  }
  __device__ void sample(int64_t item, int64_t c, A& y, A& x) const {
    math::border_sample(boxes + item / kBorders * 4, item % kBorders, pool_size,
                        argmax[place(item, c)], y, x);
  }
};

// A map of the lists is a border of an image.
template <typename T, typename A>
struct PlaceBorder {
  BorderMaxima<T, A> maxima;

  __device__ int64_t operator()(int64_t item, Window& window) const {
    const auto samples =
        math::border_of(maxima.boxes + item / kBorders * 4, item % kBorders, maxima.pool_size);
    reach_of_line(samples.rows, maxima.height, window.top, window.bottom);
    reach_of_line(samples.cols, maxima.width, window.left, window.right);
    return maxima.image(item) * kBorders + item % kBorders;
  }
};

}  // namespace

void border_align_forward(const Tensor& input, const Tensor& boxes, int64_t pool_size,
                          Tensor& output, Tensor& argmax) {
  const Tensor maps = input.contiguous(), places = wide(boxes, input.scalar_type());
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    launch("border_align", border_align_kernel<scalar_t, A>, blocks_for(output.numel()),
           maps.const_data_ptr<scalar_t>(), places.const_data_ptr<A>(), output.numel(),
           output.size(1), boxes.size(1), input.size(2), input.size(3), pool_size,
           output.mutable_data_ptr<scalar_t>(), argmax.mutable_data_ptr<int32_t>());
  });
}

void border_align_backward(const Tensor& grad, const Tensor& boxes, const Tensor& argmax,
                           int64_t pool_size, int64_t height, int64_t width, Tensor& map) {
  const Tensor outer = grad.contiguous(), index = argmax.contiguous();
  const Tensor places = wide(boxes, grad.scalar_type());
  const int64_t channels = grad.size(1);
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const BorderMaxima<scalar_t, A> maxima{outer.const_data_ptr<scalar_t>(),
                                           places.const_data_ptr<A>(),
                                           index.const_data_ptr<int32_t>(),
                                           boxes.size(1),
                                           pool_size,
                                           grad.size(0) * kBorders,
                                           channels,
                                           height,
                                           width,
                                           strides_of(false, channels, height, width)};
    max_samples_backward<scalar_t>("border_align_backward", maxima,
                                   PlaceBorder<scalar_t, A>{maxima},
                                   grad.size(0) * boxes.size(1) * kBorders, map);
  });
}

}  // namespace detops::cuda
