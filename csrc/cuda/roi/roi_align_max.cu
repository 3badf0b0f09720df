// SPDX-License-Identifier: MIT
#include "../../ops.h"
#include "max_samples.cuh"

namespace detops::cuda {
namespace {

template <typename A>
struct MaxPooling {
  const A* rois;  // [K, 5]
  A scale;
  int64_t pooled_height, pooled_width, sampling_ratio;
  bool aligned;
  int64_t count, images, channels, height, width;
  bool channels_last;

  __device__ math::SampleLine<A> rows(int64_t k, int64_t bin) const {
    return line(rois[5 * k + 2], rois[5 * k + 4], pooled_height, bin);
  }
  __device__ math::SampleLine<A> cols(int64_t k, int64_t bin) const {
    return line(rois[5 * k + 1], rois[5 * k + 3], pooled_width, bin);
  }

 private:
  __device__ math::SampleLine<A> line(A low, A high, int64_t pooled, int64_t bin) const {
    return math::bin_line(math::roi_axis(low, high, scale, aligned, pooled, sampling_ratio), bin);
  }
};

// A thread has a bin of one channel.
template <typename T, typename A>
__global__ void roi_align_max_kernel(MaxPooling<A> p, const T* input, T* output, A* argmax_y,
                                     A* argmax_x) {
  const Strides s = strides_of(p.channels_last, p.channels, p.height, p.width);
  DETOPS_FOR_EACH(i, p.count * p.channels * p.pooled_height * p.pooled_width) {
    const Position at =
        position_of(i, p.channels_last, p.channels, p.pooled_height, p.pooled_width);
    const int64_t image = image_of(p.rois + 5 * at.n, p.images);
    const auto rows = p.rows(at.n, at.h), cols = p.cols(at.n, at.w);
    math::LargestSample<A> largest{A(0), -1, -1};
    if (image >= 0) {
      const T* map = input + image * s.n + at.c * s.c;
      largest = math::largest_sample(rows, cols, p.height, p.width, [&](int64_t y, int64_t x) {
        return static_cast<A>(map[y * s.h + x * s.w]);
      });
    }
    output[i] = static_cast<T>(largest.value);
    argmax_y[i] = largest.row < 0 ? A(math::kOffMap) : rows.at(largest.row);
    argmax_x[i] = largest.row < 0 ? A(math::kOffMap) : cols.at(largest.col);
  }
}

template <typename A>
struct PlaceMaxRoI {
  MaxPooling<A> p;

  __device__ int64_t operator()(int64_t k, Window& window) const {
    Window last;
    reach_of_line(p.rows(k, 0), p.height, window.top, window.bottom);
    reach_of_line(p.rows(k, p.pooled_height - 1), p.height, last.top, last.bottom);
    reach_of_line(p.cols(k, 0), p.width, window.left, window.right);
    reach_of_line(p.cols(k, p.pooled_width - 1), p.width, last.left, last.right);
    window.top = math::min(window.top, last.top);
    window.bottom = math::max(window.bottom, last.bottom);
    window.left = math::min(window.left, last.left);
    window.right = math::max(window.right, last.right);
    return image_of(p.rois + 5 * k, p.images);
  }
};

template <typename T, typename A_>
struct PooledMaxima {
  using A = A_;
  const T* grads;
  const A *argmax_y, *argmax_x;
  int64_t pooled_width, bins, maps, channels, height, width;
  bool channels_last;
  Strides strides, pooled;

  __device__ int64_t offset(int64_t map) const { return map * strides.n; }
  __device__ int64_t place(int64_t k, int64_t bin, int64_t c) const {
    return k * pooled.n + c * pooled.c + bin / pooled_width * pooled.h +
           bin % pooled_width * pooled.w;
  }
  __device__ A y(int64_t k, int64_t bin, int64_t c) const { return argmax_y[place(k, bin, c)]; }
  __device__ A x(int64_t k, int64_t bin, int64_t c) const { return argmax_x[place(k, bin, c)]; }
  __device__ A grad(int64_t k, int64_t bin, int64_t c) const {
    return static_cast<A>(grads[place(k, bin, c)]);
  }
};

template <typename A>
MaxPooling<A> make_pooling(const Tensor& rois, double scale, int64_t pooled_height,
                           int64_t pooled_width, int64_t sampling_ratio, bool aligned,
                           const Tensor& maps) {
  return {rois.const_data_ptr<A>(),
          static_cast<A>(scale),
          pooled_height,
          pooled_width,
          sampling_ratio,
          aligned,
          rois.size(0),
          maps.size(0),
          maps.size(1),
          maps.size(2),
          maps.size(3),
          is_channels_last(maps)};
}

}  // namespace

void roi_align_max_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                           int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                           bool aligned, Tensor& output, Tensor& argmax_y, Tensor& argmax_x) {
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor rois = wide(boxes, input.scalar_type());
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const auto pooling = make_pooling<A>(rois, spatial_scale, pooled_height, pooled_width,
                                         sampling_ratio, aligned, maps);
    launch("roi_align_max", roi_align_max_kernel<scalar_t, A>, blocks_for(output.numel()), pooling,
           maps.const_data_ptr<scalar_t>(), output.mutable_data_ptr<scalar_t>(),
           argmax_y.mutable_data_ptr<A>(), argmax_x.mutable_data_ptr<A>());
  });
}

void roi_align_max_backward(const Tensor& grad, const Tensor& boxes, const Tensor& argmax_y,
                            const Tensor& argmax_x, double spatial_scale, int64_t pooled_height,
                            int64_t pooled_width, int64_t batch_size, int64_t channels,
                            int64_t height, int64_t width, int64_t sampling_ratio, bool aligned,
                            Tensor& map) {
  const MemoryFormat format = map.suggest_memory_format();
  const ScalarType type = compute_type(grad.scalar_type());
  const Tensor rois = wide(boxes, type), pooled = grad.contiguous(format);
  const Tensor rows = as_type(argmax_y, type).contiguous(format);
  const Tensor cols = as_type(argmax_x, type).contiguous(format);
  const bool channels_last = is_channels_last(map);
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const auto pooling = make_pooling<A>(rois, spatial_scale, pooled_height, pooled_width,
                                         sampling_ratio, aligned, map);
    const PooledMaxima<scalar_t, A> maxima{
        pooled.const_data_ptr<scalar_t>(),
        rows.const_data_ptr<A>(),
        cols.const_data_ptr<A>(),
        pooled_width,
        pooled_height * pooled_width,
        batch_size,
        channels,
        height,
        width,
        channels_last,
        strides_of(channels_last, channels, height, width),
        strides_of(channels_last, channels, pooled_height, pooled_width)};
    max_samples_backward<scalar_t>("roi_align_max_backward", maxima, PlaceMaxRoI<A>{pooling},
                                   boxes.size(0), map);
  });
}

}  // namespace detops::cuda
