// SPDX-License-Identifier: MIT
#include "../../math/rotated_box.h"

#include "../../ops.h"
#include "../common/element_type.h"
#include "../common/memory.h"
#include "../roi/bin_taps.h"

namespace detops::cpu {

// Pixels whose samples are found together.
constexpr int64_t kPixels = 128;

// Some channels of an image as they are; `boxes` is [height * width, 5].
template <typename From, typename To>
struct RefinedPlanes {
  using A = accumulate_t<std::remove_const_t<From>>;
  const A* boxes;
  A scale;
  int64_t points, height, width, channels, channel_stride, pixel_stride;
  const From* from;
  To* to;
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../maps/rotated_feature_align.inl"
#include "../roi/linear_pool.h"

namespace detops::cpu {
namespace {

template <typename A>
struct Refinement {
  const A* boxes;  // [N, H, W, 5]
  A scale;
  int64_t points, images, channels, height, width;

  const A* boxes_of(int64_t image) const { return boxes + image * height * width * 5; }
};

template <typename A>
Refinement<A> refinement_of(const Tensor& boxes, double spatial_scale, int64_t points,
                            const Tensor& maps) {
  return {boxes.const_data_ptr<A>(),
          static_cast<A>(spatial_scale),
          points,
          maps.size(0),
          maps.size(1),
          maps.size(2),
          maps.size(3)};
}

// A row of an image's pixels as a RoI whose bins they are.
template <typename A>
struct RowSampling {
  Refinement<A> g;
  int64_t image;

  double taps(int64_t) const { return double(4 * g.points + 1) * double(g.width); }

  auto bins_of(int64_t row) const {
    return [this, row, boxes = g.boxes_of(image) + row * g.width * 5](int64_t, int64_t col,
                                                                      BinTable<A>& table) {
      table.add_sample({row, row, A(1), A(0)}, {col, col, A(1), A(0)});
      math::visit_box_points(boxes + col * 5, g.scale, g.points, [&](A y, A x) {
        math::Taps<A> rows, cols;
        if (math::bilinear_taps(y, g.height, rows) && math::bilinear_taps(x, g.width, cols)) {
          table.add_sample(rows, cols);
        }
      });
      table.end_bin(A(1));
    };
  }
};

template <typename T>
T* image_of(const Tensor& maps, int64_t image) {
  auto* data = static_cast<std::remove_const_t<T>*>(const_cast<void*>(maps.const_data_ptr()));
  return data + image * maps.size(1) * maps.size(2) * maps.size(3);
}

// Row k of an image, as if it were pooled from it.
template <typename T>
Planes<T> row_of(const Planes<T>& map, int64_t k) {
  return {map.at(0, k, 0), map.channels, 1, map.width, map.channels_last, map.height};
}

// Whether samples are taken straight from the map: tables of them pay for many channels.
template <typename A>
bool from_samples(const Refinement<A>& g) {
  constexpr int64_t kMost = 24, kExactInFloat = 1 << 24;
  return g.channels <= kMost && std::min(g.height, g.width) >= 2 &&
         std::max(g.height, g.width) < kExactInFloat;
}

// Threads share the pixels, or backward the channels of each image.
template <typename From, typename To, typename A, typename Kernel>
void refine_samples(const Refinement<A>& g, const Tensor& from, const Tensor& to, bool backward,
                    const Kernel& kernel) {
  const bool last = is_channels_last(to);
  const int64_t pixels = g.height * g.width;
  const int64_t blocks = backward ? g.channels : (pixels + kPixels - 1) / kPixels;
  const int64_t grain = tasks_per_thread(blocks, 4 * g.points * g.channels * pixels);
  for (int64_t image = 0; image < g.images; ++image) {
    const From* map = image_of<const From>(from, image);
    To* result = image_of<To>(to, image);
    parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
      const int64_t first = backward ? begin : 0, stride = last ? 1 : pixels;
      const RefinedPlanes<From, To> planes{g.boxes_of(image),
                                           g.scale,
                                           g.points,
                                           g.height,
                                           g.width,
                                           backward ? end - begin : g.channels,
                                           stride,
                                           last ? g.channels : 1,
                                           map + first * stride,
                                           result + first * stride};
      const int64_t pixel = backward ? 0 : begin * kPixels;
      kernel(planes, pixel, backward ? pixels : std::min(end * kPixels, pixels));
    });
  }
}

Buffer<uint32_t> rows_in_order(int64_t height) {
  Buffer<uint32_t> order(height);
  for (int64_t i = 0; i < height; ++i) order[i] = static_cast<uint32_t>(i);
  return order;
}

}  // namespace

void rotated_feature_align_forward(const Tensor& features, const Tensor& boxes,
                                   double spatial_scale, int64_t points, Tensor& output) {
  check_positions("rotated_feature_align", features.size(2), features.size(3));
  expect_writes(output);
  const Tensor maps = features.contiguous(output.suggest_memory_format());
  const Tensor places = wide(boxes, features.scalar_type());
  const bool last = is_channels_last(output);
  with_element_type(features.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto g = refinement_of<A>(places, spatial_scale, points, maps);
    if (from_samples(g)) {
      return refine_samples<T, T>(g, maps, output, false, DETOPS_IN_USE(add_samples<T>));
    }
    const Buffer<uint32_t> order = rows_in_order(g.height);
    Batch<BinTable<A>> batch;
    for (int64_t image = 0; image < g.images; ++image) {
      const Planes<T> refined = planes_of<T>(output, image, last);
      pool_run<T>(batch, RowSampling<A>{g, image}, order.data(), {image, 0, 0, g.height},
                  {0, g.channels, 0, 0, 1, g.width}, planes_of<const T>(maps, image, last),
                  output.nbytes(), [&](int64_t k) { return row_of(refined, k); });
    }
  });
}

void rotated_feature_align_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                    int64_t points, Tensor& to_features) {
  check_positions("rotated_feature_align_backward", grad.size(2), grad.size(3));
  expect_writes(to_features);
  const ScalarType type = grad.scalar_type();
  const MemoryFormat format = to_features.suggest_memory_format();
  const Tensor outer = in_layout(grad, format), places = wide(boxes, type);
  const bool last = is_channels_last(to_features);
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto g = refinement_of<A>(places, spatial_scale, points, outer);
    if (from_samples(g)) {
      const bool narrow = !std::is_same_v<T, A>;
      const auto wider = to_features.options().dtype(compute_type(type));
      const Tensor sums = narrow ? empty(grad.sizes(), wider, format) : to_features;
      refine_samples<T, A>(g, outer, sums, true, DETOPS_IN_USE(spread_samples<T>));
      if (narrow) to_features.copy_(sums);
      return;
    }
    const Buffer<uint32_t> order = rows_in_order(g.height);
    Batch<BinTable<A>> batch;
    for (int64_t image = 0; image < g.images; ++image) {
      const Planes<const T> refined = planes_of<const T>(outer, image, last);
      spread_run(batch, RowSampling<A>{g, image}, order.data(), {image, 0, 0, g.height},
                 {0, g.channels, 0, 0, 1, g.width}, planes_of<T>(to_features, image, last),
                 to_features.nbytes(), [&](int64_t k) { return row_of(refined, k); });
    }
  });
}

}  // namespace detops::cpu
