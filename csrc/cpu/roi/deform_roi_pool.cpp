// SPDX-License-Identifier: MIT
#include "../../math/deform_roi_pool.h"

#include <vector>

#include "../../ops.h"
#include "../common/buffer.h"
#include "../common/element_type.h"
#include "../common/memory.h"
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
struct AxisPixels {
  const AxisPixel<A>* at;
  int64_t count;
};

template <typename A>
struct BinPixels {
  AxisPixels<A> rows, cols;
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

constexpr int64_t kGroup = 64;  // channels whose part of the offsets' gradient one thread sums

// The pixels of one axis. Samples come in order and read a pixel and its neighbour, so what was
// read before is one of the last two.
template <typename A>
class AxisSum {
 public:
  explicit AxisSum(int64_t size) : size_(size) {}

  AxisPixels<A> of(const math::RoIAxis<A>& axis, int64_t bin, int64_t stride) {
    pixels_.clear();
    const auto add = [&](int64_t i, A weight, A slope) {
      const int64_t offset = i * stride, count = static_cast<int64_t>(pixels_.size());
      for (int64_t k = std::max<int64_t>(0, count - 2); k < count; ++k) {
        if (pixels_[k].offset != offset) continue;
        pixels_[k].weight += weight;
        pixels_[k].slope += slope;
        return;
      }
      pixels_.push_back({offset, weight, slope});
    };
    const A share = 1 / axis.count;
    math::visit_moved(axis, bin, size_, [&](const math::Taps<A>& taps, A slope) {
      add(taps.low, taps.weight_low * share, -slope * share);
      if (taps.weight_high == 0 && slope == 0) return;
      add(taps.high, taps.weight_high * share, slope * share);
    });
    return {pixels_.data(), static_cast<int64_t>(pixels_.size())};
  }

 private:
  int64_t size_;
  std::vector<AxisPixel<A>> pixels_;
};

// The bins of RoIs on a map whose channels are neighbours.
template <typename A>
class MovedBins {
 public:
  MovedBins(const math::DeformRoIPooling& pooling, const Tensor& input, const Tensor& rois,
            const Tensor& offset)
      : bins(pooling.pooled_height * pooling.pooled_width),
        pooling_(pooling),
        rois_(rois.const_data_ptr<A>()),
        offset_(offset.defined() ? offset.const_data_ptr<A>() : nullptr),
        column_(input.size(1)),
        row_(input.size(1) * input.size(3)),
        rows_(input.size(2)),
        cols_(input.size(3)) {}

  // Calls visit(bin, pixels, RoI) for the bins of RoI k.
  template <typename Visit>
  void each(int64_t k, const Visit& visit) {
    const math::MovableRoI<A> roi(pooling_, rois_ + 5 * k);
    for (int64_t bin = 0; bin < bins; ++bin) {
      const A* shift = offset_ == nullptr ? nullptr : offset_ + 2 * bins * k + bin;
      const A x = shift == nullptr ? A(0) : shift[0], y = shift == nullptr ? A(0) : shift[bins];
      visit(bin,
            BinPixels<A>{rows_.of(roi.rows.moved(y), bin / pooling_.pooled_width, row_),
                         cols_.of(roi.cols.moved(x), bin % pooling_.pooled_width, column_)},
            roi);
    }
  }

  const int64_t bins;

 private:
  const math::DeformRoIPooling pooling_;
  const A *rois_, *offset_;
  int64_t column_, row_;  // numbers from a pixel to its neighbour
  AxisSum<A> rows_, cols_;
};

}  // namespace

void deform_roi_pool_forward(const Tensor& input, const Tensor& boxes,
                             const std::optional<Tensor>& offset, double spatial_scale,
                             int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                             double gamma, Tensor& output) {
  expect_writes(output);
  const ScalarType type = input.scalar_type();
  const math::DeformRoIPooling pooling{pooled_height, pooled_width, sampling_ratio, spatial_scale,
                                       gamma};
  const Tensor rois = wide(boxes, type), shifts = wide(offset, type);
  const Tensor maps = input.contiguous(MemoryFormat::ChannelsLast);
  const int64_t images = input.size(0), channels = input.size(1);
  const int64_t size = channels * input.size(2) * input.size(3);
  const bool turned = !is_channels_last(output);
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const A* roi = rois.const_data_ptr<A>();
    const T* from = static_cast<const T*>(maps.const_data_ptr());
    T* pooled = static_cast<T*>(output.mutable_data_ptr());
    check_batch_indices("deform_roi_pool", roi, 5, boxes.size(0), images);
    const int64_t lanes = DETOPS_IN_USE(kLanes<A>);
    const int64_t padded = (channels + lanes - 1) / lanes * lanes;
    parallel_for(0, boxes.size(0), 1, [&](int64_t begin, int64_t end) {
      MovedBins<A> bins(pooling, input, rois, shifts);
      Buffer<A> sums(bins.bins * padded);
      for (int64_t k = begin; k < end; ++k) {
        const T* map = from + static_cast<int64_t>(roi[5 * k]) * size;
        bins.each(k, [&](int64_t bin, const BinPixels<A>& pixels, const math::MovableRoI<A>&) {
          DETOPS_IN_USE(pool_moved_bin<T>)(pixels, map, channels, sums.data() + bin * padded);
        });
        T* to = pooled + k * bins.bins * channels;
        const auto put = turned ? DETOPS_IN_USE(turn_bins<T>) : DETOPS_IN_USE(store_bins<T>);
        put(sums.data(), padded, bins.bins, channels, to);
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
  constexpr MemoryFormat kLast = MemoryFormat::ChannelsLast;
  const Tensor maps = as_type(input, type).contiguous(kLast);
  const Tensor outer = as_type(grad, type).contiguous(kLast);
  const Tensor sums = empty(input_wanted ? input.sizes() : IntArrayRef({0, 1, 1, 1}),
                            input.options().dtype(type), kLast);
  const Tensor slopes = as_type(to_offset, type);  // itself, unless of another dtype
  const int64_t images = input.size(0), channels = input.size(1), count = boxes.size(0);
  const int64_t size = channels * input.size(2) * input.size(3),
                groups = (channels + kGroup - 1) / kGroup;
  sums.zero_();
  DETOPS_WIDE_SWITCH(type, [&] {
    using A = scalar_t;
    const A *roi = rois.const_data_ptr<A>(), *gradient = outer.const_data_ptr<A>();
    const A* from = offset ? maps.const_data_ptr<A>() : nullptr;
    A* sum = input_wanted ? sums.mutable_data_ptr<A>() : nullptr;
    check_batch_indices("deform_roi_pool_backward", roi, 5, count, images);
    Buffer<A> parts(offset ? groups * slopes.numel() : 0);
    parallel_for(0, groups, 1, [&](int64_t begin, int64_t end) {
      MovedBins<A> bins(pooling, input, rois, shifts);
      for (int64_t group = begin; group < end; ++group) {
        const int64_t first = group * kGroup, some = std::min(kGroup, channels - first);
        A* part = parts.data() + group * slopes.numel();
        for (int64_t k = 0; k < count; ++k) {
          const int64_t at = static_cast<int64_t>(roi[5 * k]) * size + first;
          const A* g = gradient + k * bins.bins * channels + first;
          bins.each(k, [&](int64_t bin, const BinPixels<A>& pixels, const math::MovableRoI<A>& r) {
            const auto by = DETOPS_IN_USE(spread_moved_bin<A>)(
                pixels, g + bin * channels, from == nullptr ? nullptr : from + at, some,
                sum == nullptr ? nullptr : sum + at);
            if (!offset) return;
            part[2 * bins.bins * k + bin] = by.x * r.cols.reach;
            part[2 * bins.bins * k + bins.bins + bin] = by.y * r.rows.reach;
          });
        }
      }
    });
    const int64_t moves = slopes.numel();
    A* slope = slopes.mutable_data_ptr<A>();
    for (int64_t i = 0; i < moves; ++i) {
      slope[i] = 0;
      for (int64_t group = 0; group < groups; ++group) slope[i] += parts[group * moves + i];
    }
  });
  if (input_wanted) to_input.copy_(sums);
  to_offset = as_type(slopes, to_offset.scalar_type());
}

}  // namespace detops::cpu
