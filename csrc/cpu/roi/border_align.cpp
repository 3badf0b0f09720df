// SPDX-License-Identifier: MIT
#include "../../math/max_samples.h"

#include "max_samples.h"

namespace detops::cpu {
namespace {

constexpr int64_t kBoxes = 16, kBorders = 4;  // boxes whose results are stored together

// The borders of a few boxes, and room for the maxima of a block of channels.
template <typename A>
class BoxBorders {
 public:
  BoxBorders()
      : room_(3 * kBoxes * kBorders * kRoIChannels), index_(kBoxes * kBorders * kRoIChannels) {}

  void place(const A* boxes, int64_t count, int64_t pool_size, int64_t height, int64_t width) {
    rows_.clear();
    cols_.clear();
    count_ = count;
    const auto number = [](int64_t i, A) { return A(i); };
    for (int64_t i = 0; i < count * kBorders; ++i) {
      const auto border = math::border_of(boxes + i / kBorders * 4, i % kBorders, pool_size);
      rows_.add(border.rows, height, number);
      cols_.add(border.cols, width, number);
    }
  }

  // Of channels [c, c + n) of each border; `map` has `channels` for each.
  template <typename T>
  void pool(const T* map, int64_t width, int64_t channels, int64_t c, int64_t n) {
    const auto pool_bin = DETOPS_IN_USE(largest_of_bin<T>);
    const int64_t planes = kBorders * channels;
    for (int64_t i = 0; i < count_ * kBorders; ++i) {
      pool_bin({rows_[i], cols_[i], map + i % kBorders * channels + c, 0, 0, width * planes, planes,
                n, A(-1), room(0, i), room(1, i), room(2, i)});
      const A* number = room(i % 2 == 0 ? 2 : 1, i);
      for (int64_t j = 0; j < kRoIChannels; ++j) {
        index_[i * kRoIChannels + j] = j < n ? static_cast<int32_t>(number[j]) : 0;
      }
    }
  }

  const A* maxima() { return room(0, 0); }
  const int32_t* index() const { return index_.data(); }

 private:
  A* room(int64_t which, int64_t i) {
    return room_.data() + (which * kBoxes * kBorders + i) * kRoIChannels;
  }

  LineTable<A> rows_, cols_;
  int64_t count_ = 0;
  Buffer<A> room_;
  Buffer<int32_t> index_;
};

// Of one channel, where a vector would hold one number.
template <typename T, typename A = accumulate_t<T>>
void forward_plane(const T* map, const A* boxes, int64_t images, int64_t count, int64_t pool_size,
                   int64_t height, int64_t width, T* output, int32_t* argmax) {
  const int64_t size = images * count * kBorders;
  parallel_for(0, size, 1024, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const int64_t border = i % kBorders, box = i / kBorders;
      const T* plane = map + (box / count * kBorders + border) * height * width;
      const auto samples = math::border_of(boxes + box * 4, border, pool_size);
      const auto largest = math::largest_sample(
          samples.rows, samples.cols, height, width,
          [&](int64_t y, int64_t x) { return A(math::to_float(plane[y * width + x])); });
      math::from_float(largest.value, output[i]);
      argmax[i] = static_cast<int32_t>(math::max(largest.row, largest.col));
    }
  });
}

}  // namespace

void border_align_forward(const Tensor& input, const Tensor& boxes, int64_t pool_size,
                          Tensor& output, Tensor& argmax) {
  expect_writes(output);
  expect_writes(argmax);
  const ScalarType type = input.scalar_type();
  const int64_t channels = output.size(1), count = boxes.size(1);
  const Tensor maps =
      input.contiguous(channels == 1 ? MemoryFormat::Contiguous : MemoryFormat::ChannelsLast);
  const Tensor places = wide(boxes, type);
  const int64_t height = input.size(2), width = input.size(3);
  const int64_t groups = (count + kBoxes - 1) / kBoxes, tasks = input.size(0) * groups;
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const T* map = static_cast<const T*>(maps.const_data_ptr());
    T* out = static_cast<T*>(output.mutable_data_ptr());
    int32_t* index = argmax.mutable_data_ptr<int32_t>();
    const A* place = places.const_data_ptr<A>();
    if (channels == 1) {
      return forward_plane<T>(map, place, input.size(0), count, pool_size, height, width, out,
                              index);
    }
    const auto grain = tasks_per_thread(tasks, output.numel());
    parallel_for(0, tasks, grain, [&](int64_t task, int64_t end) {
      BoxBorders<A> borders;
      for (; task < end; ++task) {
        const int64_t image = task / groups, first = task % groups * kBoxes;
        const int64_t some = std::min(kBoxes, count - first);
        const int64_t from = image * channels * count * kBorders;
        borders.place(place + (image * count + first) * 4, some, pool_size, height, width);
        for (int64_t c = 0; c < channels; c += kRoIChannels) {
          const int64_t n = std::min(kRoIChannels, channels - c);
          borders.pool(map + image * kBorders * channels * height * width, width, channels, c, n);
          const Planes<T> to{out + from, channels, 1, count * kBorders, false};
          const Planes<int32_t> where{index + from, channels, 1, count * kBorders, false};
          store_lanes(borders.maxima(), to, c, n, 0, first * kBorders, some * kBorders);
          store_lanes(borders.index(), where, c, n, 0, first * kBorders, some * kBorders);
        }
      }
    });
  });
}

// A thread owns the four planes of a channel, and adds box after box: the sums do not depend on the
// threads.
void border_align_backward(const Tensor& grad, const Tensor& boxes, const Tensor& argmax,
                           int64_t pool_size, int64_t height, int64_t width, Tensor& map) {
  const ScalarType type = compute_type(grad.scalar_type());
  const Tensor places = wide(boxes, type), outer = as_type(grad, type).contiguous();
  const Tensor index = argmax.contiguous();
  const bool in_place = map.scalar_type() == type;
  const Tensor sums = in_place ? map : empty(map.sizes(), map.options().dtype(type));
  const int64_t channels = grad.size(1), count = boxes.size(1), pixels = height * width;
  const int64_t tasks = grad.size(0) * channels;
  DETOPS_WIDE_SWITCH(type, [&] {
    using A = scalar_t;
    const A *place = places.const_data_ptr<A>(), *slopes = outer.const_data_ptr<A>();
    const int32_t* chosen = index.const_data_ptr<int32_t>();
    A* sum = sums.mutable_data_ptr<A>();
    const auto grain = tasks_per_thread(tasks, map.numel() + grad.numel());
    parallel_for(0, tasks, grain, [&](int64_t task, int64_t end) {
      for (; task < end; ++task) {
        const int64_t image = task / channels, c = task % channels;
        A* planes[kBorders];
        for (int64_t e = 0; e < kBorders; ++e) {
          const int64_t plane = (image * kBorders + e) * channels + c;
          planes[e] = sum + plane * pixels;
          std::fill_n(planes[e], pixels, A(0));
        }
        const A* box = place + image * count * 4;
        const A* g = slopes + task * count * kBorders;
        const int32_t* at = chosen + task * count * kBorders;
        for (int64_t i = 0; i < count * kBorders; ++i) {
          const int64_t border = i % kBorders;
          A y, x;
          math::border_sample(box + i / kBorders * 4, border, pool_size, at[i], y, x);
          add_sample(planes[border], height, width, y, x, g[i]);
        }
      }
    });
  });
  if (!in_place) map.copy_(sums);
}

}  // namespace detops::cpu
