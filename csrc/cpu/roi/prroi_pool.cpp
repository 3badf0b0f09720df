// SPDX-License-Identifier: MIT
#include "../../math/prroi_pool.h"

#include "../common/host.h"
#include "product_taps.h"

#define DETOPS_KERNELS "../roi/prroi_pool.inl"
#include "linear_pool.h"

namespace detops::cpu {
namespace {

template <typename A>
auto sampling_of(const A* rois, A scale, const Tensor& pooled, const Tensor& maps) {
  const auto axis = [scale](A low, A high, int64_t bins) {
    return math::prroi_axis(low, high, scale, bins);
  };
  return BoxSampling{rois, pooled, maps, 3, axis};
}

// A pixel that a bin reads along one axis: its weight, and the slopes of that as the two
// coordinates of the box grow.
template <typename A>
struct PixelSlopes {
  int64_t pixel;
  A weight, by_low, by_high;
};

// A thread has whole RoIs, of which it adds bin by bin.
template <typename T, typename Sampling, typename A = accumulate_t<T>>
void slope_boxes(const Sampling& sampling, A scale, const Tensor& grad, const Tensor& input,
                 A* to_boxes) {
  constexpr MemoryFormat kLast = MemoryFormat::ChannelsLast;
  const Tensor maps = input.contiguous(kLast);
  const Tensor outer = grad.to(compute_type(grad.scalar_type())).contiguous(kLast);
  const int64_t channels = maps.size(1), height = maps.size(2), width = maps.size(3);
  using AxisSlopes = std::vector<std::vector<PixelSlopes<A>>>;  // of each bin
  const auto fill = [&](const math::PrRoIAxis<A>& axis, int64_t size, AxisSlopes& slopes) {
    const auto pooled = static_cast<int64_t>(slopes.size());
    for (int64_t p = 0; p < pooled; ++p) {
      slopes[p].clear();
      math::visit_slopes(axis, p, size, 0.0, double(size), [&](int64_t i, A weight, A low, A high) {
        PixelSlopes<A> pixel{i, weight, 0, 0};
        math::box_slopes(low, high, p, pooled, scale, pixel.by_low, pixel.by_high);
        slopes[p].push_back(pixel);
      });
    }
  };
  const auto dot = DETOPS_IN_USE(dot_channels<T>);
  const auto grain = tasks_per_thread(grad.size(0), grad.numel());
  parallel_for(grad.size(0), grain, [&](int64_t k, int64_t end) {
    AxisSlopes rows(grad.size(2)), cols(grad.size(3));
    for (; k < end; ++k) {
      const auto [down, across] = sampling.axes(k);
      fill(down, height, rows);
      fill(across, width, cols);
      const auto image = static_cast<int64_t>(sampling.rois[5 * k]);
      const T* map = planes_of<const T>(maps, image, true).data;
      const A* g = planes_of<const A>(outer, k, true).data;
      A x1 = 0, y1 = 0, x2 = 0, y2 = 0;
      for (const auto& bin_rows : rows) {
        for (const auto& bin_cols : cols) {
          for (const PixelSlopes<A>& row : bin_rows) {
            for (const PixelSlopes<A>& col : bin_cols) {
              const A product = dot(map + (row.pixel * width + col.pixel) * channels, g, channels);
              x1 += row.weight * col.by_low * product;
              y1 += row.by_low * col.weight * product;
              x2 += row.weight * col.by_high * product;
              y2 += row.by_high * col.weight * product;
            }
          }
          g += channels;
        }
      }
      const A gradient[] = {0, x1, y1, x2, y2};
      std::copy_n(gradient, 5, to_boxes + 5 * k);
    }
  });
}

}  // namespace

void prroi_pool_forward(const Tensor& input, const Tensor& boxes, double spatial_scale, int64_t,
                        int64_t, Tensor& output) {
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor rois = wide(boxes, input.scalar_type());
  with_element_type(input.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const A *roi = rois.const_data_ptr<A>(), scale = static_cast<A>(spatial_scale);
    const auto sampling = sampling_of(roi, scale, output, maps);
    const Plan plan = make_plan("prroi_pool", roi, boxes.size(0), maps.size(0));
    pool_plan<ProductTable<A>, const T, T>(plan, maps, output, [&](int64_t) { return sampling; });
  });
}

void prroi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& boxes,
                         double spatial_scale, bool input_wanted, bool boxes_wanted,
                         Tensor& to_input, Tensor& to_boxes) {
  const ScalarType type = input.scalar_type();
  const Tensor rois = wide(boxes, type);
  const Tensor pooled = grad.to(type);
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const A *roi = rois.const_data_ptr<A>(), scale = static_cast<A>(spatial_scale);
    const auto sampling = sampling_of(roi, scale, grad, input);
    const Plan plan = make_plan("prroi_pool_backward", roi, boxes.size(0), input.size(0));
    if (input_wanted && to_input.numel() > 0) {
      const Tensor outer = to_memory_format(pooled, to_input.suggest_memory_format());
      pool_plan<ProductTable<A>, T, const T>(plan, to_input, outer,
                                             [&](int64_t) { return sampling; });
    }
    if (!boxes_wanted) return;
    slope_boxes<T>(sampling, scale, pooled, input, to_boxes.mutable_data_ptr<A>());
  });
}

}  // namespace detops::cpu
