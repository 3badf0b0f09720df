// SPDX-License-Identifier: MIT
#include "max_samples.h"

namespace detops::cpu {
namespace {

// What all RoIs of a call have in common.
template <typename T>
struct MaxPooling {
  using A = accumulate_t<T>;
  const Tensor &maps, &output, &argmax_y, &argmax_x;
  const A* rois;  // [K, 5]
  A scale;
  int64_t sampling_ratio;
  bool aligned, channels_last;
};

// The samples of one RoI at a time, and room for the maxima of a block of channels of it.
template <typename T>
class MaxRoI {
 public:
  using A = accumulate_t<T>;

  explicit MaxRoI(const MaxPooling<T>& pooling)
      : p_(pooling),
        wide_(pooling.output.size(3)),
        bins_(pooling.output.size(2) * wide_),
        room_(3 * bins_ * kRoIChannels) {}

  Reads place(int64_t k) {
    const A* roi = p_.rois + 5 * k;
    const auto fill = [&](LineTable<A>& table, A low, A high, int64_t pooled, int64_t size) {
      const auto axis = math::roi_axis(low, high, p_.scale, p_.aligned, pooled, p_.sampling_ratio);
      table.clear();
      for (int64_t bin = 0; bin < pooled; ++bin) {
        table.add(math::bin_line(axis, bin), size, [](int64_t, A x) { return x; });
      }
    };
    fill(rows_, roi[2], roi[4], bins_ / wide_, p_.maps.size(2));
    fill(cols_, roi[1], roi[3], wide_, p_.maps.size(3));
    return {rows_.read.begin, rows_.read.end, cols_.read};
  }

  // Channels [c, c + n) of RoI k, which has its place, from a map that begins at (row, col) and c.
  template <typename M>
  void pool(int64_t k, int64_t c, int64_t n, const M* map, int64_t row, int64_t col,
            int64_t row_stride, int64_t col_stride) {
    const auto pool_bin = DETOPS_IN_USE(largest_of_bin<M>);
    A* best = room_.data();
    const int64_t apart = bins_ * kRoIChannels;
    for (int64_t bin = 0; bin < bins_; ++bin) {
      pool_bin({rows_[bin / wide_], cols_[bin % wide_], map, row, col, row_stride, col_stride, n,
                A(math::kOffMap), best + bin * kRoIChannels, apart});
    }
    const bool last = p_.channels_last;
    store_lanes(best, planes_of<T>(p_.output, k, last), c, n, 0, 0, bins_);
    store_lanes(best + apart, planes_of<A>(p_.argmax_y, k, last), c, n, 0, 0, bins_);
    store_lanes(best + 2 * apart, planes_of<A>(p_.argmax_x, k, last), c, n, 0, 0, bins_);
  }

 private:
  const MaxPooling<T>& p_;
  int64_t wide_, bins_;
  LineTable<A> rows_, cols_;
  Buffer<A> room_;
};

// Straight from a channels_last map.
template <typename T>
void forward_direct(const Plan& plan, const MaxPooling<T>& pooling) {
  const int64_t channels = pooling.maps.size(1), count = pooling.output.size(0);
  const int64_t grain = tasks_per_thread(count, pooling.output.numel());
  parallel_for(0, count, grain, [&](int64_t i, int64_t end) {
    MaxRoI<T> roi(pooling);
    for (; i < end; ++i) {
      const int64_t k = plan.order[i];
      const auto image = static_cast<int64_t>(pooling.rois[5 * k]);
      const auto map = planes_of<const T>(pooling.maps, image, true);
      roi.place(k);
      for (int64_t c = 0; c < channels; c += kRoIChannels) {
        const int64_t n = std::min(kRoIChannels, channels - c);
        roi.pool(k, c, n, map.data + c, 0, 0, map.width * channels, channels);
      }
    }
  });
}

template <typename T>
void forward_lanes(const Plan& plan, const MaxPooling<T>& pooling) {
  for (const Run& run : plan.runs) {
    const uint32_t* order = plan.order.data() + run.begin;
    const int64_t count = run.end - run.begin;
    if (count == 0) continue;
    const auto map = planes_of<const T>(pooling.maps, run.image, false);
    Footprint footprint(map.height, map.width);
    std::vector<Reads> reads(count);
    MaxRoI<T> any(pooling);
    for (int64_t i = 0; i < count; ++i) {
      reads[i] = any.place(order[i]);
      footprint.add(reads[i]);
    }
    const auto make_pool = [&] {
      return [&, roi = MaxRoI<T>(pooling)](int64_t i, int64_t c, int64_t n, auto& window) mutable {
        roi.place(order[i]);
        roi.pool(order[i], c, n, window.data(), window.first(), window.columns().begin,
                 window.stride(), kRoIChannels);
      };
    };
    const int64_t outputs = count * pooling.output.numel() / pooling.output.size(0);
    pool_from_lanes(
        map, {0, map.channels}, footprint, count, outputs, [&](int64_t i) { return reads[i]; },
        make_pool);
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
    const A *roi = rois.const_data_ptr<A>(), scale = static_cast<A>(spatial_scale);
    const MaxPooling<T> pooling{maps,  output,         argmax_y, argmax_x,     roi,
                                scale, sampling_ratio, aligned,  channels_last};
    const Plan plan = make_plan("roi_align_max", roi, boxes.size(0), maps.size(0));
    const auto forward = channels_last ? forward_direct<T> : forward_lanes<T>;
    forward(plan, pooling);
  });
}

void roi_align_max_backward(const Tensor& grad, const Tensor& boxes, const Tensor& argmax_y,
                            const Tensor& argmax_x, double, int64_t, int64_t, int64_t batch_size,
                            int64_t channels, int64_t height, int64_t width, int64_t, bool,
                            Tensor& map) {
  const ScalarType type = compute_type(grad.scalar_type());
  const Tensor rois = wide(boxes, type), rows = wide(argmax_y, type), cols = wide(argmax_x, type);
  Plan plan;
  DETOPS_WIDE_SWITCH(type, [&] {
    plan = make_plan("roi_align_max_backward", rois.const_data_ptr<scalar_t>(), boxes.size(0),
                     batch_size);
  });
  const int64_t bins = grad.size(2) * grad.size(3), pixels = height * width;
  const auto add = [&](int64_t plane, const auto* gradients, auto* sums) {
    using A = std::decay_t<decltype(*sums)>;
    const Run& run = plan.runs[plane / channels];
    const A *at_y = rows.const_data_ptr<A>(), *at_x = cols.const_data_ptr<A>();
    A* to = sums + plane * pixels;
    std::fill_n(to, pixels, A(0));
    for (int64_t i = run.begin; i < run.end; ++i) {
      const int64_t from = (plan.order[i] * channels + plane % channels) * bins;
      const A *g = gradients + from, *y = at_y + from, *x = at_x + from;
      for (int64_t b = 0; b < bins; ++b) add_sample(to, height, width, y[b], x[b], g[b]);
    }
  };
  sum_in_planes(grad, batch_size * channels, map, add);
}

}  // namespace detops::cpu
