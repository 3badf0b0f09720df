// SPDX-License-Identifier: MIT
#include "../../math/deform_roi_pool.h"

#include <vector>

#include "../common/host.h"
#include "roi_plan.h"

namespace detops::cpu {

// A row or column of pixels that a bin reads: how much of the bin it is, and how that grows as the
// bin is moved.
template <typename A>
struct AxisPixel {
  int64_t offset;
  A weight, slope;
};

template <typename A>
struct BinPixels {
  ArrayRef<AxisPixel<A>> rows, cols;
};

template <typename A>
struct MovedBinGradient {
  A y, x;
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../roi/deform_roi_pool.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// The pixels of one axis. Samples come in order and read a pixel and its neighbour, so what was
// read before is one of the last two.
template <typename A>
ArrayRef<AxisPixel<A>> pixels_of(const math::RoIAxis<A>& axis, int64_t bin, int64_t size,
                                 int64_t stride, std::vector<AxisPixel<A>>& pixels) {
  pixels.clear();
  const auto add = [&](int64_t i, A weight, A slope) {
    for (size_t back = 1; back <= 2 && back <= pixels.size(); ++back) {
      AxisPixel<A>& seen = pixels[pixels.size() - back];
      if (seen.offset != i * stride) continue;
      seen.weight += weight;
      seen.slope += slope;
      return;
    }
    pixels.push_back({i * stride, weight, slope});
  };
  const A share = 1 / axis.count;
  math::visit_moved(axis, bin, size, [&](const math::Taps<A>& taps, A slope) {
    add(taps.low, taps.weight_low * share, -slope * share);
    if (taps.weight_high == 0 && slope == 0) return;
    add(taps.high, taps.weight_high * share, slope * share);
  });
  return pixels;
}

// The bins of RoIs on a map whose channels are neighbours.
template <typename A>
struct MovedBins {
  const math::DeformRoIPooling& pooling;
  const Tensor& input;
  const A *rois, *offset;  // [K, 5]; [K, 2, pooled_height, pooled_width], or null
  std::vector<AxisPixel<A>> rows{}, cols{};

  // Calls visit(bin, pixels, RoI) for the bins of RoI k.
  template <typename Visit>
  void each(int64_t k, const Visit& visit) {
    const int64_t wide = pooling.pooled_width, bins = pooling.pooled_height * wide;
    const int64_t height = input.size(2), width = input.size(3), column = input.size(1);
    const math::MovableRoI<A> roi(pooling, rois + 5 * k);
    for (int64_t bin = 0; bin < bins; ++bin) {
      const A* shift = offset == nullptr ? nullptr : offset + 2 * bins * k + bin;
      const A x = shift == nullptr ? A(0) : shift[0], y = shift == nullptr ? A(0) : shift[bins];
      visit(bin,
            BinPixels<A>{pixels_of(roi.rows.moved(y), bin / wide, height, width * column, rows),
                         pixels_of(roi.cols.moved(x), bin % wide, width, column, cols)},
            roi);
    }
  }
};

}  // namespace

void deform_roi_pool_forward(const Tensor& input, const Tensor& boxes,
                             const std::optional<Tensor>& offset, double spatial_scale,
                             int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                             double gamma, Tensor& output) {
  const ScalarType type = input.scalar_type();
  const math::DeformRoIPooling pooling{pooled_height, pooled_width, sampling_ratio, spatial_scale,
                                       gamma};
  const Tensor rois = wide(boxes, type), shifts = wide(offset, type);
  const Tensor maps = input.contiguous(MemoryFormat::ChannelsLast);
  const int64_t channels = input.size(1), bins = pooled_height * pooled_width;
  const bool channels_last = is_channels_last(output);
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const A* roi = rois.const_data_ptr<A>();
    const A* shift = offset ? shifts.const_data_ptr<A>() : nullptr;
    check_batch_indices("deform_roi_pool", roi, 5, boxes.size(0), input.size(0));
    const auto pool = DETOPS_IN_USE(pool_moved_bin<T>);
    parallel_for(boxes.size(0), 1, [&](int64_t k, int64_t end) {
      MovedBins<A> moved{pooling, input, roi, shift};
      Buffer<A> lanes(blocks_of(channels) * bins * kRoIChannels);
      for (; k < end; ++k) {
        const T* map = planes_of<const T>(maps, static_cast<int64_t>(roi[5 * k]), true).data;
        moved.each(k, [&](int64_t bin, const BinPixels<A>& pixels, const auto&) {
          pool(pixels, map, channels, lanes.data() + bin * kRoIChannels, bins * kRoIChannels);
        });
        const auto pooled = planes_of<T>(output, k, channels_last);
        for (int64_t c = 0; c < channels; c += kRoIChannels) {
          const int64_t n = std::min(kRoIChannels, channels - c);
          store_lanes(lanes.data() + c * bins, pooled, c, n, 0, 0, bins);
        }
      }
    });
  });
}

// A thread owns some channels, and adds RoI after RoI: the sums do not depend on the threads.
void deform_roi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& boxes,
                              const std::optional<Tensor>& offset, double spatial_scale,
                              int64_t sampling_ratio, double gamma, bool input_wanted,
                              Tensor& to_input, Tensor& to_offset) {
  const ScalarType type = compute_type(input.scalar_type());
  const math::DeformRoIPooling pooling{grad.size(2), grad.size(3), sampling_ratio, spatial_scale,
                                       gamma};
  const Tensor rois = wide(boxes, type), shifts = wide(offset, type);
  constexpr int64_t kGroup = 64;  // channels whose part of the offsets' gradient one thread sums
  constexpr MemoryFormat kLast = MemoryFormat::ChannelsLast;
  const Tensor maps = input.to(type).contiguous(kLast);
  const Tensor outer = grad.to(type).contiguous(kLast);
  const Tensor sums = empty(input_wanted ? input.sizes() : IntArrayRef({0, 1, 1, 1}),
                            input.options().dtype(type), kLast);
  const int64_t channels = input.size(1), count = boxes.size(0), moves = to_offset.numel();
  const int64_t bins = grad.size(2) * grad.size(3), groups = divide_up(channels, kGroup);
  const int64_t size = channels * input.size(2) * input.size(3);
  sums.zero_();
  DETOPS_WIDE_SWITCH(type, [&] {
    using A = scalar_t;
    const A *roi = rois.const_data_ptr<A>(), *gradient = outer.const_data_ptr<A>();
    const A* shift = offset ? shifts.const_data_ptr<A>() : nullptr;
    const A* from = offset ? maps.const_data_ptr<A>() : nullptr;
    A* sum = input_wanted ? sums.mutable_data_ptr<A>() : nullptr;
    check_batch_indices("deform_roi_pool_backward", roi, 5, count, input.size(0));
    Buffer<A> parts(groups * moves);
    const auto spread = DETOPS_IN_USE(spread_moved_bin<A>);
    parallel_for(groups, 1, [&](int64_t group, int64_t end) {
      MovedBins<A> moved{pooling, input, roi, shift};
      for (; group < end; ++group) {
        const int64_t first = group * kGroup, some = std::min(kGroup, channels - first);
        for (int64_t k = 0; k < count; ++k) {
          const int64_t at = static_cast<int64_t>(roi[5 * k]) * size + first;
          const A* g = gradient + k * bins * channels + first;
          const int64_t part = group * moves + 2 * bins * k;
          moved.each(k, [&](int64_t bin, const BinPixels<A>& pixels, const auto& r) {
            const auto by =
                spread(pixels, g + bin * channels, from == nullptr ? nullptr : from + at, some,
                       sum == nullptr ? nullptr : sum + at);
            if (!offset) return;
            parts[part + bin] = by.x * r.cols.offset_scale;
            parts[part + bins + bin] = by.y * r.rows.offset_scale;
          });
        }
      }
    });
    A* slope = to_offset.mutable_data_ptr<A>();
    for (int64_t i = 0; i < moves; ++i) {
      slope[i] = 0;
      for (int64_t group = 0; group < groups; ++group) slope[i] += parts[group * moves + i];
    }
  });
  if (input_wanted) to_input.copy_(sums);
}

}  // namespace detops::cpu
