// SPDX-License-Identifier: MIT
#include "../../math/border_align.h"

#include "max_samples.h"

namespace detops::cpu {
namespace {

constexpr int64_t kBorders = 4, kTogether = 16 * kBorders;  // whose results are stored together

// Of one channel, where a vector would hold one number.
template <typename T>
void forward_plane(const Tensor& maps, const Tensor& boxes, int64_t pool_size, Tensor& output,
                   Tensor& argmax) {
  using A = accumulate_t<T>;
  const int64_t count = boxes.size(1), height = maps.size(2), width = maps.size(3);
  const T* map = static_cast<const T*>(maps.const_data_ptr());
  const A* box = boxes.const_data_ptr<A>();
  T* out = static_cast<T*>(output.mutable_data_ptr());
  int32_t* index = argmax.mutable_data_ptr<int32_t>();
  parallel_for(0, output.numel(), 1024, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const int64_t border = i % kBorders, k = i / kBorders;
      const T* plane = map + (k / count * kBorders + border) * height * width;
      const auto samples = math::border_of(box + 4 * k, border, pool_size);
      const auto largest = math::largest_sample(
          samples.rows, samples.cols, height, width,
          [&](int64_t y, int64_t x) { return A(math::to_float(plane[y * width + x])); });
      math::from_float(largest.value, out[i]);
      index[i] = static_cast<int32_t>(math::max(largest.row, largest.col));
    }
  });
}

// Some borders at a time, of which a position's channels are neighbours.
template <typename T>
void forward_channels(const Tensor& maps, const Tensor& boxes, int64_t pool_size, Tensor& output,
                      Tensor& argmax) {
  using A = accumulate_t<T>;
  const int64_t channels = output.size(1), planes = maps.size(1);
  const int64_t height = maps.size(2), width = maps.size(3);
  const int64_t borders = boxes.size(1) * kBorders, groups = (borders + kTogether - 1) / kTogether;
  const int64_t tasks = maps.size(0) * groups, grain = tasks_per_thread(tasks, output.numel());
  const auto pool = DETOPS_IN_USE(largest_of_bin<T>);
  parallel_for(0, tasks, grain, [&](int64_t task, int64_t end) {
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
        const auto border = math::border_of(box + i / kBorders * 4, i % kBorders, pool_size);
        rows.add(border.rows, height, number);
        cols.add(border.cols, width, number);
      }
      for (int64_t c = 0; c < channels; c += kRoIChannels) {
        const int64_t n = std::min(kRoIChannels, channels - c);
        for (int64_t i = 0; i < some; ++i) {
          A* best = maxima.data() + i * kRoIChannels;
          pool({rows[i], cols[i], map + i % kBorders * channels + c, 0, 0, width * planes, planes,
                n, A(-1), best, kApart});
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

void border_align_forward(const Tensor& input, const Tensor& boxes, int64_t pool_size,
                          Tensor& output, Tensor& argmax) {
  expect_writes(output);
  expect_writes(argmax);
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

// A task has the four planes of a channel.
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
