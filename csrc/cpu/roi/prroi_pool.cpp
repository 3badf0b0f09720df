// SPDX-License-Identifier: MIT
#include "../../math/prroi_pool.h"

#include "../../ops.h"
#include "../common/element_type.h"
#include "../common/memory.h"
#include "product_taps.h"

#define DETOPS_KERNELS "../roi/prroi_pool.inl"
#include "linear_pool.h"

namespace detops::cpu {
namespace {

template <typename A>
struct PrRoISampling {
  const A* rois;  // [K, 5]
  A scale;
  int64_t pooled_height, pooled_width, height, width;

  struct Axes {
    math::PrRoIAxis<A> rows, cols;
  };
  Axes axes(int64_t k) const {
    const A* roi = rois + 5 * k;
    return {math::prroi_axis(roi[2], roi[4], scale, pooled_height),
            math::prroi_axis(roi[1], roi[3], scale, pooled_width)};
  }

  double taps(int64_t k) const {
    const auto most = [](const math::PrRoIAxis<A>& axis, int64_t pooled, int64_t size) {
      return double(std::min(pooled * math::most_pixels(axis), size + 3 * pooled));
    };
    const auto [rows, cols] = axes(k);
    return most(rows, pooled_height, height) + most(cols, pooled_width, width);
  }
};

template <typename A>
PrRoISampling<A> make_sampling(const Tensor& rois, double spatial_scale, const Tensor& pooled,
                               const Tensor& maps) {
  return {rois.const_data_ptr<A>(),
          static_cast<A>(spatial_scale),
          pooled.size(2),
          pooled.size(3),
          maps.size(2),
          maps.size(3)};
}

Share whole(const Tensor& pooled) {
  return {0, pooled.size(1), 0, 0, pooled.size(2), pooled.size(3)};
}

template <typename T>
void spread(const PrRoISampling<accumulate_t<T>>& sampling, const Plan& plan, const Tensor& grad,
            Tensor& maps) {
  const bool channels_last = is_channels_last(maps);
  const Tensor pooled = in_layout(grad, maps.suggest_memory_format());
  Batch<ProductTable<accumulate_t<T>>> batch;
  for (const Run& run : plan.runs) {
    spread_run(batch, sampling, plan.order.data(), run, whole(pooled),
               planes_of<T>(maps, run.image, channels_last), maps.nbytes(),
               [&](int64_t k) { return planes_of<const T>(pooled, k, channels_last); });
  }
}

// A pixel that a bin reads along one axis: its weight, and the slopes of that as the two
// coordinates of the box grow.
template <typename A>
struct PixelSlopes {
  int64_t pixel;
  A weight, by_low, by_high;
};

template <typename A>
class AxisSlopes {
 public:
  void fill(const math::PrRoIAxis<A>& axis, int64_t pooled, int64_t size, A scale) {
    pixels_.clear();
    begin_.assign(1, 0);
    for (int64_t p = 0; p < pooled; ++p) {
      math::visit_slopes(axis, p, size, 0.0, double(size), [&](int64_t i, A weight, A low, A high) {
        PixelSlopes<A> pixel{i, weight, 0, 0};
        math::slopes_of_box(low, high, p, pooled, scale, pixel.by_low, pixel.by_high);
        pixels_.push_back(pixel);
      });
      begin_.push_back(pixels_.size());
    }
  }

  const PixelSlopes<A>* begin(int64_t p) const { return pixels_.data() + begin_[p]; }
  const PixelSlopes<A>* end(int64_t p) const { return pixels_.data() + begin_[p + 1]; }

 private:
  std::vector<PixelSlopes<A>> pixels_;
  std::vector<size_t> begin_;
};

// A thread has whole RoIs, of which it adds bin by bin.
template <typename T, typename A = accumulate_t<T>>
void slope_boxes(const PrRoISampling<A>& sampling, const Tensor& grad, const Tensor& input,
                 A* to_boxes) {
  constexpr MemoryFormat kLast = MemoryFormat::ChannelsLast;
  const Tensor maps = input.contiguous(kLast);
  const Tensor outer = as_type(grad, compute_type(grad.scalar_type())).contiguous(kLast);
  const int64_t channels = maps.size(1), bins = grad.size(2) * grad.size(3);
  const T* map = static_cast<const T*>(maps.const_data_ptr());
  const A* grads = outer.const_data_ptr<A>();
  const auto dot = DETOPS_IN_USE(dot_channels<T>);
  const auto grain = tasks_per_thread(grad.size(0), grad.numel());
  parallel_for(0, grad.size(0), grain, [&](int64_t k, int64_t end) {
    AxisSlopes<A> rows, cols;
    for (; k < end; ++k) {
      const auto axes = sampling.axes(k);
      rows.fill(axes.rows, sampling.pooled_height, sampling.height, sampling.scale);
      cols.fill(axes.cols, sampling.pooled_width, sampling.width, sampling.scale);
      const auto image = static_cast<int64_t>(sampling.rois[5 * k]);
      const T* plane = map + image * channels * sampling.height * sampling.width;
      A x1 = 0, y1 = 0, x2 = 0, y2 = 0;
      for (int64_t bin = 0; bin < bins; ++bin) {
        const int64_t ph = bin / sampling.pooled_width, pw = bin % sampling.pooled_width;
        const A* g = grads + (k * bins + bin) * channels;
        for (const auto* row = rows.begin(ph); row != rows.end(ph); ++row) {
          for (const auto* col = cols.begin(pw); col != cols.end(pw); ++col) {
            const int64_t pixel = row->pixel * sampling.width + col->pixel;
            const A product = dot(plane + pixel * channels, g, channels);
            x1 += row->weight * col->by_low * product;
            y1 += row->by_low * col->weight * product;
            x2 += row->weight * col->by_high * product;
            y2 += row->by_high * col->weight * product;
          }
        }
      }
      const A gradient[] = {0, x1, y1, x2, y2};
      std::copy_n(gradient, 5, to_boxes + 5 * k);
    }
  });
}

}  // namespace

void prroi_pool_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                        int64_t pooled_height, int64_t pooled_width, Tensor& output) {
  expect_writes(output);
  const bool channels_last = is_channels_last(input);
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor rois = wide(boxes, input.scalar_type());
  with_element_type(input.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto sampling = make_sampling<A>(rois, spatial_scale, output, maps);
    const Plan plan = make_plan("prroi_pool", sampling.rois, boxes.size(0), maps.size(0));
    Batch<ProductTable<A>> batch;
    for (const Run& run : plan.runs) {
      pool_run<T>(batch, sampling, plan.order.data(), run, whole(output),
                  planes_of<const T>(maps, run.image, channels_last), output.nbytes(),
                  [&](int64_t k) { return planes_of<T>(output, k, channels_last); });
    }
  });
}

void prroi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& boxes,
                         double spatial_scale, bool input_wanted, bool boxes_wanted,
                         Tensor& to_input, Tensor& to_boxes) {
  const ScalarType type = input.scalar_type();
  const Tensor rois = wide(boxes, type);
  const Tensor pooled = as_type(grad, type);
  const Tensor slopes = as_type(to_boxes, compute_type(type));  // itself, unless of another dtype
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto sampling = make_sampling<A>(rois, spatial_scale, grad, input);
    const Plan plan = make_plan("prroi_pool_backward", sampling.rois, boxes.size(0), input.size(0));
    if (input_wanted && to_input.numel() > 0) spread<T>(sampling, plan, pooled, to_input);
    if (boxes_wanted) slope_boxes<T>(sampling, pooled, input, slopes.mutable_data_ptr<A>());
  });
  if (boxes_wanted) to_boxes = as_type(slopes, to_boxes.scalar_type());
}

}  // namespace detops::cpu
