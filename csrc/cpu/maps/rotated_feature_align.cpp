// SPDX-License-Identifier: MIT
#include "../../math/rotated_box.h"

#include <numeric>

#include "../common/host.h"
#include "../roi/bin_taps.h"

namespace detops::cpu {

// Number of pixels whose sampling points are located together.
constexpr int64_t kPixels = 128;

template <typename A>
struct Refinement {
  const A* boxes;  // [height, width, 5] for each image
  A scale;
  int64_t points, images, channels, height, width;
};

// Some channels of an image, in their own layout.
template <typename From, typename To>
struct RefinedPlanes : Refinement<accumulate_t<From>> {
  using A = accumulate_t<From>;
  int64_t channel_stride, pixel_stride;
  const From* from;
  To* to;
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../maps/rotated_feature_align.inl"
#include "../roi/linear_pool.h"

namespace detops::cpu {
namespace {

template <typename A>
Refinement<A> make_refinement(const Tensor& boxes, double spatial_scale, int64_t points,
                              const Tensor& maps) {
  const int64_t* size = maps.metadata().sizes;
  return {elements<A>(boxes), A(spatial_scale), points, size[0], size[1], size[2], size[3]};
}

// Returns `g` with the boxes of one image.
template <typename A>
Refinement<A> select_image(Refinement<A> g, int64_t image) {
  g.boxes += image * g.height * g.width * 5;
  return g;
}

// Describes a row of pixels as a RoI with one bin per pixel.
template <typename A>
struct RowSampling {
  Refinement<A> g;

  double taps(int64_t) const { return double(4 * g.points + 1) * double(g.width); }

  auto bins_of(int64_t row) const {
    return
        [this, row, boxes = g.boxes + row * g.width * 5](int64_t, int64_t col, BinTable<A>& table) {
          table.add_sample({row, row, A(1), A(0)}, {col, col, A(1), A(0)});
          math::visit_box_points(boxes + col * 5, g.scale, g.points,
                                 [&](A y, A x) { table.add_sample(y, x); });
          table.end_bin(A(1));
        };
  }
};

// Returns whether samples are read directly from the map. Tables of taps pay off for many channels.
template <typename A>
bool samples_directly(const Refinement<A>& g) {
  constexpr int64_t kMaxChannels = 24, kExactInFloat = 1 << 24;
  return g.channels <= kMaxChannels && std::min(g.height, g.width) >= 2 &&
         std::max(g.height, g.width) < kExactInFloat;
}

// Splits the pixels of each image across threads or, backward, its channels.
template <typename From, typename To, typename A, typename Kernel>
void refine_samples(const Refinement<A>& g, const Tensor& from, const Tensor& to, bool backward,
                    const Kernel& kernel) {
  const bool channels_last = is_channels_last(to);
  const int64_t pixels = g.height * g.width;
  const int64_t blocks = backward ? g.channels : divide_up(pixels, kPixels);
  const int64_t grain = tasks_per_thread(blocks, 4 * g.points * g.channels * pixels);
  for (int64_t image = 0; image < g.images; ++image) {
    const From* map = planes_of<const From>(from, image, channels_last).data;
    To* result = planes_of<To>(to, image, channels_last).data;
    parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
      const int64_t first = backward ? begin : 0, stride = channels_last ? 1 : pixels;
      RefinedPlanes<From, To> planes{select_image(g, image), stride, channels_last ? g.channels : 1,
                                     map + first * stride, result + first * stride};
      if (backward) planes.channels = end - begin;
      const int64_t pixel = backward ? 0 : begin * kPixels;
      kernel(planes, pixel, backward ? pixels : std::min(end * kPixels, pixels));
    });
  }
}

// Treats every row of every image as a RoI of the map: forward if M is const, else backward.
template <typename M, typename P, typename A>
void refine_rows(const Refinement<A>& g, const Tensor& maps, const Tensor& refined,
                 bool channels_last) {
  Buffer<uint32_t> order(g.height);
  std::iota(order.data(), order.data() + g.height, 0u);
  Batch<BinTable<A>> batch;
  for (int64_t image = 0; image < g.images; ++image) {
    const Planes<P> rows = planes_of<P>(refined, image, channels_last);
    pool_run(batch, RowSampling<A>{select_image(g, image)}, order.data(), {image, 0, 0, g.height},
             {0, g.channels, 0, 0, 1, g.width}, planes_of<M>(maps, image, channels_last),
             maps.nbytes(), [&](int64_t k) -> Planes<P> {
               return {rows.at(0, k, 0), g.channels, 1, g.width, channels_last, g.height};
             });
  }
}

}  // namespace

void rotated_feature_align_forward(const Tensor& features, const Tensor& boxes,
                                   double spatial_scale, int64_t points, Tensor& output) {
  const Tensor maps = features.contiguous(output.suggest_memory_format());
  const Tensor wide_boxes = wide(boxes, features.scalar_type());
  const bool channels_last = is_channels_last(output);
  with_element_type(features.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto g = make_refinement<A>(wide_boxes, spatial_scale, points, maps);
    if (samples_directly(g)) {
      return refine_samples<T, T>(g, maps, output, false, DETOPS_IN_USE(add_samples<T>));
    }
    refine_rows<const T, T>(g, maps, output, channels_last);
  });
}

void rotated_feature_align_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                    int64_t points, Tensor& to_features) {
  const ScalarType type = grad.scalar_type();
  const bool channels_last = is_channels_last(to_features);
  const Tensor wide_boxes = wide(boxes, type);
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto g = make_refinement<A>(wide_boxes, spatial_scale, points, grad);
    if (samples_directly(g)) {
      // Threads split the channels. In channels_last they would write to the same cache lines, so
      // the gradient is summed in planes.
      const auto wider = to_features.options().dtype(compute_type(type));
      const bool in_place = std::is_same_v<T, A> && !channels_last;
      const Tensor sums = in_place ? to_features : empty(grad.sizes(), wider);
      refine_samples<T, A>(g, grad.contiguous(), sums, true, DETOPS_IN_USE(scatter_samples<T>));
      if (!in_place) to_features.copy_(sums);
      return;
    }
    const Tensor upstream = to_memory_format(grad, to_features.suggest_memory_format());
    refine_rows<T, const T>(g, to_features, upstream, channels_last);
  });
}

}  // namespace detops::cpu
