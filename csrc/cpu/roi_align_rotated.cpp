// SPDX-License-Identifier: MIT
#include "../math/roi_align_rotated.h"

#include "../ops.h"
#include "element_type.h"
#include "memory.h"
#include "sparse_pool.h"

namespace detops::cpu {
namespace {

template <typename A>
struct RotatedSampling {
  const A* rois;  // [K, 6]
  A scale;
  int64_t pooled_height, pooled_width, sampling_ratio, height, width;

  math::RotatedRoI<A> roi(int64_t k) const {
    return math::rotated_roi(rois + 6 * k + 1, scale, pooled_height, pooled_width, sampling_ratio);
  }

  double taps(int64_t k) const {
    const math::RotatedRoI<A> r = roi(k);
    const double bins = double(pooled_height) * double(pooled_width);
    return std::min(4 * bins * double(r.rows.count) * double(r.cols.count),
                    2 * double(height) * double(width) + 16 * bins);
  }

  auto bins_of(int64_t k) const {
    return [r = roi(k), reach = math::reach_of_map(height, width), height = height, width = width](
               int64_t ph, int64_t pw, BinRuleTable<A>& table) {
      math::visit_samples(r, ph, pw, reach, [&](A y, A x) {
        math::Taps<A> rows, cols;
        if (math::bilinear_taps(y, height, rows) && math::bilinear_taps(x, width, cols)) {
          table.add_sample(rows, cols);
        }
      });
      table.end_bin(1 / math::max(r.rows.count * r.cols.count, A(1)));
    };
  }
};

template <typename A>
RotatedSampling<A> make_sampling(const Tensor& rois, double spatial_scale, const Tensor& pooled,
                                 const Tensor& maps, int64_t sampling_ratio) {
  return {rois.const_data_ptr<A>(),
          static_cast<A>(spatial_scale),
          pooled.size(2),
          pooled.size(3),
          sampling_ratio,
          maps.size(2),
          maps.size(3)};
}

template <typename A>
Plan plan_of(const char* op, const RotatedSampling<A>& sampling, const Tensor& rois,
             int64_t images) {
  return make_plan(
      op, sampling.rois, 6, rois.size(0), images, 1, [](const A*) { return 0; },
      [](const A* roi) { return roi[2] - (math::abs(roi[3]) + math::abs(roi[4])) / 2; });
}

Share whole(const Tensor& pooled) {
  return {0, pooled.size(1), 0, 0, pooled.size(2), pooled.size(3)};
}

}  // namespace

Tensor roi_align_rotated_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                                 int64_t pooled_height, int64_t pooled_width,
                                 int64_t sampling_ratio) {
  const char* op = "roi_align_rotated";
  Tensor output = meta::roi_align_rotated_forward(input, rois, spatial_scale, pooled_height,
                                                  pooled_width, sampling_ratio);
  if (output.numel() == 0) return output;
  check_positions(op, input.size(2), input.size(3));
  expect_writes(output);
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor wide_rois = wide(rois, input.scalar_type());
  const bool channels_last = is_channels_last(input);
  with_element_type(input.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto sampling =
        make_sampling<accumulate_t<T>>(wide_rois, spatial_scale, output, maps, sampling_ratio);
    sparse_forward<T>(
        sampling, plan_of(op, sampling, rois, maps.size(0)), whole(output),
        [&](int64_t image) { return planes_of<const T>(maps, image, channels_last); },
        [&](int64_t k) { return planes_of<T>(output, k, channels_last); });
  });
  return output;
}

Tensor roi_align_rotated_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                                  int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                                  int64_t channels, int64_t height, int64_t width,
                                  int64_t sampling_ratio) {
  const char* op = "roi_align_rotated_backward";
  Tensor maps =
      meta::roi_align_rotated_backward(grad, rois, spatial_scale, pooled_height, pooled_width,
                                       batch_size, channels, height, width, sampling_ratio);
  if (channels == 0) return maps;
  check_positions(op, height, width);
  expect_writes(maps);
  const bool channels_last = is_channels_last(maps);
  const Tensor pooled = grad.contiguous(maps.suggest_memory_format());
  const Tensor wide_rois = wide(rois, grad.scalar_type());
  with_element_type(grad.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto sampling =
        make_sampling<accumulate_t<T>>(wide_rois, spatial_scale, pooled, maps, sampling_ratio);
    sparse_backward<T>(
        sampling, plan_of(op, sampling, rois, batch_size), whole(pooled),
        [&](int64_t image) { return planes_of<T>(maps, image, channels_last); },
        [&](int64_t k) { return planes_of<const T>(pooled, k, channels_last); });
  });
  return maps;
}

}  // namespace detops::cpu
