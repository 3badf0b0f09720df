// SPDX-License-Identifier: MIT
#include "max_samples.h"

namespace detops::cpu {
namespace {

// What all RoIs of a call have in common.
template <typename A>
struct MaxPooling {
  const A* rois;  // [K, 5]
  A scale;
  int64_t pooled_height, pooled_width, sampling_ratio;
  bool aligned;
  int64_t height, width;

  int64_t bins() const { return pooled_height * pooled_width; }
};

// The samples of one RoI at a time, and room for the maxima of a block of channels of it.
template <typename A>
class MaxRoI {
 public:
  explicit MaxRoI(const MaxPooling<A>& pooling)
      : p_(pooling), room_(3 * pooling.bins() * kRoIChannels) {}

  Reads place(int64_t k) {
    const A* roi = p_.rois + 5 * k;
    const auto fill = [&](LineTable<A>& table, A low, A high, int64_t pooled, int64_t size) {
      const auto axis = math::roi_axis(low, high, p_.scale, p_.aligned, pooled, p_.sampling_ratio);
      table.clear();
      for (int64_t bin = 0; bin < pooled; ++bin) {
        table.add(math::bin_line(axis, bin), size, [](int64_t, A x) { return x; });
      }
    };
    fill(rows_, roi[2], roi[4], p_.pooled_height, p_.height);
    fill(cols_, roi[1], roi[3], p_.pooled_width, p_.width);
    return {rows_.first(), rows_.last(), {cols_.first(), cols_.last()}};
  }

  // Of channels [0, n) of a map that begins at (row, col).
  template <typename T>
  void pool(const T* map, int64_t row, int64_t col, int64_t row_stride, int64_t col_stride,
            int64_t n) {
    const auto pool_bin = DETOPS_IN_USE(largest_of_bin<T>);
    for (int64_t bin = 0; bin < p_.bins(); ++bin) {
      pool_bin({rows_[bin / p_.pooled_width], cols_[bin % p_.pooled_width], map, row, col,
                row_stride, col_stride, n, A(math::kOffMap), maxima(0, bin), maxima(1, bin),
                maxima(2, bin)});
    }
  }

  // The maxima, their rows, or their columns: [bins, kRoIChannels].
  A* maxima(int64_t which, int64_t bin = 0) {
    return room_.data() + (which * p_.bins() + bin) * kRoIChannels;
  }

 private:
  const MaxPooling<A> p_;
  LineTable<A> rows_, cols_;
  Buffer<A> room_;
};

template <typename T>
struct MaxOutputs {
  const Tensor &output, &argmax_y, &argmax_x;
  bool channels_last;

  void store(MaxRoI<accumulate_t<T>>& roi, int64_t k, int64_t c, int64_t n) const {
    using A = accumulate_t<T>;
    const int64_t bins = output.size(2) * output.size(3);
    store_lanes(roi.maxima(0), planes_of<T>(output, k, channels_last), c, n, 0, 0, bins);
    store_lanes(roi.maxima(1), planes_of<A>(argmax_y, k, channels_last), c, n, 0, 0, bins);
    store_lanes(roi.maxima(2), planes_of<A>(argmax_x, k, channels_last), c, n, 0, 0, bins);
  }
};

// Straight from a channels_last map.
template <typename T>
void forward_direct(const Plan& plan, const MaxPooling<accumulate_t<T>>& pooling,
                    const Tensor& maps, const MaxOutputs<T>& outputs) {
  const int64_t channels = maps.size(1), count = outputs.output.size(0);
  const int64_t grain = tasks_per_thread(count, outputs.output.numel());
  parallel_for(0, count, grain, [&](int64_t i, int64_t end) {
    MaxRoI<accumulate_t<T>> roi(pooling);
    for (; i < end; ++i) {
      const int64_t k = plan.order[i];
      const auto image = static_cast<int64_t>(pooling.rois[5 * k]);
      const auto map = planes_of<const T>(maps, image, true);
      roi.place(k);
      for (int64_t c = 0; c < channels; c += kRoIChannels) {
        const int64_t n = std::min(kRoIChannels, channels - c);
        roi.pool(map.data + c, 0, 0, map.width * channels, channels, n);
        outputs.store(roi, k, c, n);
      }
    }
  });
}

template <typename T>
void forward_lanes(const Plan& plan, const MaxPooling<accumulate_t<T>>& pooling, const Tensor& maps,
                   const MaxOutputs<T>& outputs) {
  using A = accumulate_t<T>;
  for (const Run& run : plan.runs) {
    const int64_t count = run.end - run.begin;
    if (count == 0) continue;
    const auto map = planes_of<const T>(maps, run.image, false);
    Footprint footprint(map.height, map.width);
    std::vector<Reads> reads(count);
    MaxRoI<A> roi(pooling);
    for (int64_t i = 0; i < count; ++i) {
      reads[i] = roi.place(plan.order[run.begin + i]);
      footprint.add(reads[i]);
    }
    const auto make_pool = [&] {
      return [&, roi = MaxRoI<A>(pooling)](int64_t i, int64_t c, int64_t n,
                                           RoIWindow<A>& window) mutable {
        const int64_t k = plan.order[run.begin + i];
        roi.place(k);
        roi.pool(window.data(), window.first(), window.columns().begin, window.stride(),
                 kRoIChannels, n);
        outputs.store(roi, k, c, n);
      };
    };
    pool_from_lanes(
        map, {0, map.channels}, footprint, count, count * map.channels * pooling.bins(),
        [&](int64_t i) { return reads[i]; }, make_pool);
  }
}

}  // namespace

void roi_align_max_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                           int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                           bool aligned, Tensor& output, Tensor& argmax_y, Tensor& argmax_x) {
  expect_writes(output);
  const bool channels_last = is_channels_last(input);
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor rois = wide(boxes, input.scalar_type());
  with_element_type(input.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const MaxPooling<A> pooling{rois.const_data_ptr<A>(),
                                static_cast<A>(spatial_scale),
                                pooled_height,
                                pooled_width,
                                sampling_ratio,
                                aligned,
                                maps.size(2),
                                maps.size(3)};
    const Plan plan = make_plan("roi_align_max", pooling.rois, boxes.size(0), maps.size(0));
    const MaxOutputs<T> outputs{output, argmax_y, argmax_x, channels_last};
    const auto forward = channels_last ? forward_direct<T> : forward_lanes<T>;
    forward(plan, pooling, maps, outputs);
  });
}

// A thread owns planes, and adds RoI after RoI: the sums do not depend on the threads.
void roi_align_max_backward(const Tensor& grad, const Tensor& boxes, const Tensor& argmax_y,
                            const Tensor& argmax_x, double, int64_t, int64_t, int64_t batch_size,
                            int64_t channels, int64_t height, int64_t width, int64_t, bool,
                            Tensor& map) {
  const ScalarType type = compute_type(grad.scalar_type());
  const Tensor rois = wide(boxes, type);
  const Tensor outer = as_type(grad, type).contiguous();
  const Tensor rows = as_type(argmax_y, type).contiguous();
  const Tensor cols = as_type(argmax_x, type).contiguous();
  const bool in_place = map.scalar_type() == type && !is_channels_last(map);
  const Tensor sums = in_place ? map : empty(map.sizes(), map.options().dtype(type));
  const int64_t bins = grad.size(2) * grad.size(3), pixels = height * width;
  DETOPS_WIDE_SWITCH(type, [&] {
    using A = scalar_t;
    const Plan plan =
        make_plan("roi_align_max_backward", rois.const_data_ptr<A>(), boxes.size(0), batch_size);
    const int64_t planes = batch_size * channels;
    const A *slopes = outer.const_data_ptr<A>(), *at_y = rows.const_data_ptr<A>();
    const A* at_x = cols.const_data_ptr<A>();
    A* sum = sums.mutable_data_ptr<A>();
    const int64_t grain = tasks_per_thread(planes, map.numel() + grad.numel());
    parallel_for(0, planes, grain, [&](int64_t plane, int64_t end) {
      for (; plane < end; ++plane) {
        const Run& run = plan.runs[plane / channels];
        A* to = sum + plane * pixels;
        std::fill_n(to, pixels, A(0));
        for (int64_t i = run.begin; i < run.end; ++i) {
          const int64_t from = (plan.order[i] * channels + plane % channels) * bins;
          const A *g = slopes + from, *y = at_y + from, *x = at_x + from;
          for (int64_t b = 0; b < bins; ++b) add_sample(to, height, width, y[b], x[b], g[b]);
        }
      }
    });
  });
  if (!in_place) map.copy_(sums);
}

}  // namespace detops::cpu
