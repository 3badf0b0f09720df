// SPDX-License-Identifier: MIT
#include "../../math/border_align.h"
#include "max_samples.cuh"

namespace detops::cuda {
namespace {

constexpr int64_t kBorders = 4;

// A thread has a border of one channel. The maps are borders of images, [N * 4, C, H, W].
template <typename T, typename A>
__global__ void border_align_kernel(Maps maps, const T* input, const A* boxes, int64_t count,
                                    int64_t pool_size, T* output, int32_t* argmax) {
  const Strides& s = maps.strides;
  DETOPS_FOR_EACH(i, maps.n * maps.c * count) {
    const int64_t border = i % kBorders, k = i / kBorders % count;
    const int64_t c = i / kBorders / count % maps.c, image = i / kBorders / count / maps.c;
    const T* map = input + s.at(image * kBorders + border, c, 0, 0);
    const auto samples = math::border_of(boxes + (image * count + k) * 4, border, pool_size);
    const auto largest = math::largest_sample(
        samples.rows, samples.cols, maps.h, maps.w,
        [&](int64_t y, int64_t x) { return static_cast<A>(map[y * s.h + x * s.w]); });
    output[i] = static_cast<T>(largest.value);
    // Of one line, all samples have the number 0.
    argmax[i] = static_cast<int32_t>(math::max(largest.row, largest.col));
  }
}

// Items are borders of boxes, as they lie in memory.
template <typename T, typename A_>
struct BorderMaxima {
  using A = A_;
  Maps maps;
  const T* grads;
  const A* boxes;
  const int32_t* argmax;
  int64_t count, pool_size;
  int64_t bins = 1;

  __device__ int64_t image(int64_t item) const { return item / kBorders / count; }
  __device__ PlacedRoI placed(int64_t item) const {
    const int64_t border = item % kBorders;
    const auto samples = math::border_of(boxes + item / kBorders * 4, border, pool_size);
    const auto span = [](const math::SampleLine<A>& line) {
      return span_between(line.origin, line.at(line.count - 1));
    };
    return {image(item) * kBorders + border,
            window_of(span(samples.rows), span(samples.cols), maps.h, maps.w)};
  }
  __device__ GivenSample<A> given(int64_t item, int64_t, int64_t c) const {
    const int64_t i = item + (image(item) * (maps.c - 1) + c) * count * kBorders;
    GivenSample<A> sample{0, 0, static_cast<A>(grads[i])};
    math::border_sample(boxes + item / kBorders * 4, item % kBorders, pool_size, argmax[i],
                        sample.y, sample.x);
    return sample;
  }
};

}  // namespace

void border_align_forward(const Tensor& input, const Tensor& boxes, int64_t pool_size,
                          Tensor& output, Tensor& argmax) {
  const Tensor in = input.contiguous(), places = wide(boxes, input.scalar_type());
  const Maps maps{output.size(0) * kBorders, output.size(1), in.size(2), in.size(3), false};
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    launch("border_align", border_align_kernel<scalar_t, accumulate_t<scalar_t>>,
           blocks_for(output.numel()), maps, in, places, boxes.size(1), pool_size, output, argmax);
  });
}

void border_align_backward(const Tensor& grad, const Tensor& boxes, const Tensor& argmax,
                           int64_t pool_size, int64_t height, int64_t width, Tensor& map) {
  const Tensor outer = grad.contiguous(), index = argmax.contiguous();
  const Tensor places = wide(boxes, grad.scalar_type());
  const Maps maps{grad.size(0) * kBorders, grad.size(1), height, width, false};
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const BorderMaxima<scalar_t, A> maxima{maps,
                                           outer.const_data_ptr<scalar_t>(),
                                           places.const_data_ptr<A>(),
                                           index.const_data_ptr<int32_t>(),
                                           boxes.size(1),
                                           pool_size};
    max_samples_backward<scalar_t>("border_align_backward", maxima, maps.n * boxes.size(1), map);
  });
}

}  // namespace detops::cuda
