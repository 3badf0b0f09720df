// SPDX-License-Identifier: MIT
#include <vector>

#include "../../math/max_samples.h"
#include "../common/host.h"
#include "roi_plan.h"

// Two ops take the largest of some bilinear samples: RoIAlign's maximum and BorderAlign.
namespace detops::cpu {

// The two pixels of a sample along one axis, and a mark that identifies its position.
template <typename A>
struct LineSample {
  math::Taps<A> taps;
  A mark;
};

// Those that are on the map, and whether these are all.
template <typename A>
struct LineSamples {
  const LineSample<A>* at;
  int64_t count;
  bool all;
};

// One bin on a map of which one position's channels are neighbours.
template <typename T>
struct MaxBin {
  using A = accumulate_t<T>;
  LineSamples<A> rows, cols;
  const T* map;  // where position (0, 0) is, or would be
  int64_t row_stride, col_stride, channels;
  A off_map;      // the mark of a sample that is not on the map
  A* best;        // room for kRoIChannels maxima
  int64_t apart;  // numbers from there to their rows' marks, and on to their columns'
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../roi/roi_align_max.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// The samples of some lines of one axis.
template <typename A>
class LineTable {
 public:
  math::PixelRange read{};  // of the map, by any of them

  void clear() {
    samples_.clear();
    lines_.clear();
    read = {INT32_MAX, 0};
  }

  // mark(i, x) of sample i, which is at x.
  template <typename Mark>
  void add(const math::SampleLine<A>& line, int64_t size, const Mark& mark) {
    const size_t begin = samples_.size();
    math::visit_line(line, size, [&](int64_t i, const math::Taps<A>& taps) {
      samples_.push_back({taps, mark(i, line.at(i))});
      read = {std::min(read.begin, taps.low), std::max(read.end, taps.high + 1)};
    });
    const auto count = static_cast<int64_t>(samples_.size() - begin);
    lines_.push_back({begin, count, count == line.count});
  }

  LineSamples<A> operator[](int64_t i) const {
    const Line& line = lines_[i];
    return {samples_.data() + line.begin, line.count, line.all};
  }

 private:
  struct Line {
    size_t begin;
    int64_t count;
    bool all;
  };

  std::vector<LineSample<A>> samples_;
  std::vector<Line> lines_;
};

// The backward pass calls add(task, gradients, sums) with all gradients and all of the map, both
// contiguous and of the type that is computed in. A task owns some planes, clears them and adds RoI
// after RoI: the sums do not depend on the threads.
template <typename Add>
void sum_in_planes(const Tensor& grad, int64_t tasks, Tensor& map, const Add& add) {
  const Tensor outer = wide(grad);
  const ScalarType type = outer.scalar_type();
  const bool in_place = map.scalar_type() == type && !is_channels_last(map);
  const Tensor sums = in_place ? map : empty(map.sizes(), map.options().dtype(type));
  const int64_t grain = tasks_per_thread(tasks, map.numel() + grad.numel());
  DETOPS_WIDE_SWITCH(type, [&] {
    const scalar_t* gradients = outer.const_data_ptr<scalar_t>();
    scalar_t* sum = sums.mutable_data_ptr<scalar_t>();
    parallel_each(tasks, grain, [&](int64_t task) { add(task, gradients, sum); });
  });
  if (!in_place) map.copy_(sums);
}

// Adds what a sample at (y, x) gives to its pixels of a plane.
template <typename A>
void add_sample(A* plane, int64_t height, int64_t width, A y, A x, A grad) {
  math::visit_corners(y, x, height, width, [&](int64_t row, int64_t col, A weight) {
    plane[row * width + col] += weight * grad;
  });
}

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
struct MaxRoI {
  using A = accumulate_t<T>;
  const MaxPooling<T>& p;
  const int64_t wide = p.output.size(3), bins = p.output.size(2) * wide;
  LineTable<A> rows{}, cols{};
  Buffer<A> room{size_t(3 * bins * kRoIChannels)};

  Reads place(int64_t k) {
    const A* roi = p.rois + 5 * k;
    const auto fill = [&](LineTable<A>& table, A low, A high, int64_t pooled, int64_t size) {
      const auto axis = math::roi_axis(low, high, p.scale, p.aligned, pooled, p.sampling_ratio);
      table.clear();
      for (int64_t bin = 0; bin < pooled; ++bin) {
        table.add(math::bin_line(axis, bin), size, [](int64_t, A x) { return x; });
      }
    };
    fill(rows, roi[2], roi[4], bins / wide, p.maps.size(2));
    fill(cols, roi[1], roi[3], wide, p.maps.size(3));
    return {rows.read.begin, rows.read.end, cols.read};
  }

  // Pools channels [c, c + n) of RoI k, which was placed, from a map that begins at c.
  template <typename M>
  void pool(int64_t k, int64_t c, int64_t n, const M* map, int64_t row_stride, int64_t col_stride) {
    const auto pool_bin = DETOPS_IN_USE(largest_of_bin<M>);
    A* best = room.data();
    const int64_t apart = bins * kRoIChannels;
    for (int64_t bin = 0; bin < bins; ++bin) {
      pool_bin({rows[bin / wide], cols[bin % wide], map, row_stride, col_stride, n,
                A(math::kOffMap), best + bin * kRoIChannels, apart});
    }
    const bool last = p.channels_last;
    store_lanes(best, planes_of<T>(p.output, k, last), c, n, 0, 0, bins);
    store_lanes(best + apart, planes_of<A>(p.argmax_y, k, last), c, n, 0, 0, bins);
    store_lanes(best + 2 * apart, planes_of<A>(p.argmax_x, k, last), c, n, 0, 0, bins);
  }
};

// Straight from a channels_last map.
template <typename T>
void forward_direct(const Plan& plan, const MaxPooling<T>& p) {
  const int64_t channels = p.maps.size(1), count = p.output.size(0);
  const int64_t grain = tasks_per_thread(count, p.output.numel());
  parallel_for(count, grain, [&](int64_t i, int64_t end) {
    MaxRoI<T> roi{p};
    for (; i < end; ++i) {
      const int64_t k = plan.order[i];
      const auto map = planes_of<const T>(p.maps, static_cast<int64_t>(p.rois[5 * k]), true);
      roi.place(k);
      for (int64_t c = 0; c < channels; c += kRoIChannels) {
        const int64_t n = std::min(kRoIChannels, channels - c);
        roi.pool(k, c, n, map.data + c, map.width * channels, channels);
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
    MaxRoI<T> any{pooling};
    for (int64_t i = 0; i < count; ++i) {
      reads[i] = any.place(order[i]);
      footprint.add(reads[i]);
    }
    const auto make_pool = [&] {
      return [&, roi = MaxRoI<T>{pooling}](int64_t i, int64_t c, int64_t n, auto& window) mutable {
        roi.place(order[i]);
        roi.pool(order[i], c, n, window.origin(), window.stride(), kRoIChannels);
      };
    };
    pool_from_lanes(
        map, all_bins(pooling.output), false, footprint, count, [&](int64_t i) { return reads[i]; },
        make_pool);
  }
}

constexpr int64_t kBorders = 4, kTogether = 16 * kBorders;  // whose results are stored together

// Of one channel, where a vector would hold one number.
template <typename T, typename A = accumulate_t<T>>
void forward_plane(const Tensor& maps, const Tensor& boxes, int64_t pool_size, Tensor& output,
                   Tensor& argmax) {
  const int64_t count = boxes.size(1), height = maps.size(2), width = maps.size(3);
  const T* map = elements<T>(maps);
  const A* box = boxes.const_data_ptr<A>();
  T* out = mutable_elements<T>(output);
  int32_t* index = argmax.mutable_data_ptr<int32_t>();
  parallel_each(output.numel(), 1024, [&](int64_t i) {
    const int64_t border = i % kBorders, k = i / kBorders;
    const T* plane = map + (k / count * kBorders + border) * height * width;
    const auto samples = math::border_lines(box + 4 * k, border, pool_size);
    const auto largest = math::largest_sample(
        samples.rows, samples.cols, height, width,
        [&](int64_t y, int64_t x) { return A(math::to_float(plane[y * width + x])); });
    math::from_float(largest.value, out[i]);
    index[i] = static_cast<int32_t>(math::max(largest.row, largest.col));
  });
}

// Some borders at a time, of which a position's channels are neighbours.
template <typename T, typename A = accumulate_t<T>>
void forward_channels(const Tensor& maps, const Tensor& boxes, int64_t pool_size, Tensor& output,
                      Tensor& argmax) {
  const int64_t channels = output.size(1), planes = maps.size(1);
  const int64_t height = maps.size(2), width = maps.size(3);
  const int64_t borders = boxes.size(1) * kBorders, groups = divide_up(borders, kTogether);
  const int64_t tasks = maps.size(0) * groups, grain = tasks_per_thread(tasks, output.numel());
  const auto pool = DETOPS_IN_USE(largest_of_bin<T>);
  parallel_for(tasks, grain, [&](int64_t task, int64_t end) {
    constexpr int64_t kApart = kTogether * kRoIChannels;
    LineTable<A> rows, cols;
    Buffer<A> maxima(3 * kApart);
    Buffer<int32_t> numbers(kApart);
    for (; task < end; ++task) {
      const int64_t image = task / groups, first = task % groups * kTogether;
      const int64_t some = std::min(kTogether, borders - first);
      const A* box = boxes.const_data_ptr<A>() + image * borders + first;  // four numbers each
      const T* map = planes_of<const T>(maps, image, true).data;
      const auto number = [](int64_t i, A) { return A(i); };
      rows.clear();
      cols.clear();
      for (int64_t i = 0; i < some; ++i) {
        const auto border = math::border_lines(box + i / kBorders * 4, i % kBorders, pool_size);
        rows.add(border.rows, height, number);
        cols.add(border.cols, width, number);
      }
      for (int64_t c = 0; c < channels; c += kRoIChannels) {
        const int64_t n = std::min(kRoIChannels, channels - c);
        for (int64_t i = 0; i < some; ++i) {
          A* best = maxima.data() + i * kRoIChannels;
          pool({rows[i], cols[i], map + i % kBorders * channels + c, width * planes, planes, n,
                A(-1), best, kApart});
          const A* chosen = best + (i % 2 == 0 ? 2 : 1) * kApart;
          for (int64_t j = 0; j < kRoIChannels; ++j) {
            numbers[i * kRoIChannels + j] = j < n ? static_cast<int32_t>(chosen[j]) : 0;
          }
        }
        store_lanes(maxima.data(), planes_of<T>(output, image, false), c, n, 0, first, some);
        store_lanes(numbers.data(), planes_of<int32_t>(argmax, image, false), c, n, 0, first, some);
      }
    }
  });
}

}  // namespace

void roi_align_max_forward(const Tensor& input, const Tensor& boxes, double spatial_scale, int64_t,
                           int64_t, int64_t sampling_ratio, bool aligned, Tensor& output,
                           Tensor& argmax_y, Tensor& argmax_x) {
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

void border_align_forward(const Tensor& input, const Tensor& boxes, int64_t pool_size,
                          Tensor& output, Tensor& argmax) {
  const bool plane = output.size(1) == 1;
  const Tensor maps =
      input.contiguous(plane ? MemoryFormat::Contiguous : MemoryFormat::ChannelsLast);
  const Tensor places = wide(boxes, input.scalar_type());
  with_element_type(input.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto forward = plane ? forward_plane<T> : forward_channels<T>;
    forward(maps, places, pool_size, output, argmax);
  });
}

// Here a task has the four planes of a channel.
void border_align_backward(const Tensor& grad, const Tensor& boxes, const Tensor& argmax,
                           int64_t pool_size, int64_t height, int64_t width, Tensor& map) {
  const Tensor places = wide(boxes, grad.scalar_type()), index = argmax.contiguous();
  const int64_t channels = grad.size(1), borders = boxes.size(1) * kBorders;
  const auto add = [&](int64_t task, const auto* gradients, auto* sums) {
    using A = std::decay_t<decltype(*sums)>;
    const int64_t image = task / channels, c = task % channels;
    A* planes[kBorders];
    for (int64_t e = 0; e < kBorders; ++e) {
      planes[e] = sums + ((image * kBorders + e) * channels + c) * height * width;
      std::fill_n(planes[e], height * width, A(0));
    }
    const A *box = places.const_data_ptr<A>() + image * borders, *g = gradients + task * borders;
    const int32_t* chosen = index.const_data_ptr<int32_t>() + task * borders;
    for (int64_t i = 0; i < borders; ++i) {
      A y, x;
      math::border_sample(box + i / kBorders * 4, i % kBorders, pool_size, chosen[i], y, x);
      add_sample(planes[i % kBorders], height, width, y, x, g[i]);
    }
  };
  sum_in_planes(grad, grad.size(0) * channels, map, add);
}

}  // namespace detops::cpu
