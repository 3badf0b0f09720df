// SPDX-License-Identifier: MIT
#include "../../math/deform.h"
#include "../common/host.h"

namespace detops::cpu {

// A point with some of its four pixels off the feature map. These are replaced by a pixel on it,
// with weight 0, or by -1 if all four are off.
template <typename A>
struct EdgePoint {
  int64_t point;
  int64_t pixel[4];
  bool on_map[4];
  A weight[4], right, lower;
  A x, y;  // sums of its gradient
};

// The points of an image. at[i] is the index of the upper left pixel of point i. The other three
// are adjacent to it. Edge points are also listed in `edge`, and at[i] is 0 for them.
template <typename A>
struct LocatedPoints {
  lane_index_t<A>* at;
  A* weight[4];
  A *right, *lower;  // nullptr if no gradient of the points is wanted
  EdgePoint<A>* edge;
  int64_t count, edges;
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../maps/point_sample.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kSamplesPerThread = 8192;
constexpr int64_t kChannelGroup = 32;  // channels whose point gradients one thread sums

// Owns the memory of a LocatedPoints.
template <typename A>
struct LocatedPointsBuffer : LocatedPoints<A> {
  Buffer<A> weights;
  Buffer<lane_index_t<A>> pixels;
  Buffer<EdgePoint<A>> edge_points;

  LocatedPointsBuffer(int64_t count, bool with_gradients) : LocatedPoints<A>{}, edge_points(count) {
    const int64_t padded = round_up(count, DETOPS_IN_USE(kLanes<A>));
    A* next = weights.reserve(padded * (with_gradients ? 6 : 4));
    for (A*& weight : this->weight) weight = next, next += padded;
    this->right = with_gradients ? next : nullptr;
    this->lower = with_gradients ? next + padded : nullptr;
    this->at = pixels.reserve(padded);
    this->edge = edge_points.data();
    this->count = count;
  }
};

}  // namespace

void point_sample_forward(const Tensor& input, const Tensor& points, Tensor& output) {
  const ScalarType type = input.scalar_type();
  const Tensor maps = input.contiguous(), wide_points = wide(points, type);
  const int64_t channels = input.size(1), height = input.size(2), width = input.size(3);
  const int64_t count = points.size(1), grain = grain_for(kSamplesPerThread, count);
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto kernel = DETOPS_IN_USE(sample_plane<T>);
    const T* from = elements<T>(maps);
    const A* point_data = elements<A>(wide_points);
    T* out = mutable_elements<T>(output);
    parallel_for(input.size(0) * channels, grain, [&](int64_t begin, int64_t end) {
      LocatedPointsBuffer<A> p(count, false);
      for (int64_t plane = begin; plane < end; ++plane) {
        if (plane == begin || plane % channels == 0) {
          DETOPS_IN_USE(locate_points<A>)
          (point_data + plane / channels * count * 2, height, width, p);
        }
        kernel(from + plane * height * width, width, p, out + plane * count);
      }
    });
  });
}

void point_sample_backward(const Tensor& grad, const Tensor& input, const Tensor& points,
                           bool input_wanted, bool points_wanted, Tensor& to_input,
                           Tensor& to_points) {
  const ScalarType type = input.scalar_type();
  const Tensor maps = input.contiguous(), wide_points = wide(points, type);
  const Tensor upstream = grad.to(type).contiguous();
  const int64_t images = input.size(0), channels = input.size(1), count = points.size(1);
  const int64_t height = input.size(2), width = input.size(3), size = height * width;
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto scatter = DETOPS_IN_USE(scatter_plane<T>);
    const auto add_gradients = DETOPS_IN_USE(add_point_gradients<T>);
    const int64_t groups = divide_up(channels, kChannelGroup),
                  padded = round_up(count, DETOPS_IN_USE(kLanes<A>));
    // x, then y, for each group. The groups of a point are summed in order.
    Buffer<A> sums(points_wanted ? images * groups * 2 * padded : 0);
    const T *from = elements<T>(maps), *gradient = elements<T>(upstream);
    const A* point_data = elements<A>(wide_points);
    T* out = mutable_elements<T>(to_input);
    parallel_for(images * groups, 1, [&](int64_t begin, int64_t end) {
      LocatedPointsBuffer<A> p(count, points_wanted);
      Buffer<A> plane_sums(std::is_same_v<A, T> || !input_wanted ? 0 : size);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t image = task / groups, first = task % groups * kChannelGroup;
        DETOPS_IN_USE(locate_points<A>)(point_data + image * count * 2, height, width, p);
        A* to_x = points_wanted ? sums.data() + task * 2 * padded : nullptr;
        if (points_wanted) std::fill_n(to_x, 2 * padded, A(0));
        for (int64_t c = first; c < std::min(first + kChannelGroup, channels); ++c) {
          const int64_t plane = image * channels + c;
          const T* g = gradient + plane * count;
          if (points_wanted) add_gradients(from + plane * size, g, width, p, to_x, to_x + padded);
          if (!input_wanted) continue;
          T* to = out + plane * size;
          A* sum = plane_sums.data();
          if constexpr (std::is_same_v<A, T>) sum = to;
          std::fill_n(sum, size, A(0));
          scatter(g, width, p, sum);
          if constexpr (!std::is_same_v<A, T>) {
            for (int64_t i = 0; i < size; ++i) math::from_float(sum[i], to[i]);
          }
        }
        for (int64_t e = 0; points_wanted && e < p.edges; ++e) {
          to_x[p.edge[e].point] = p.edge[e].x;
          to_x[padded + p.edge[e].point] = p.edge[e].y;
        }
      }
    });
    if (!points_wanted) return;
    A* to = mutable_elements<A>(to_points);
    for (int64_t i = 0; i < images * count; ++i, to += 2) {
      A x = 0, y = 0;
      const A* sum = sums.data() + i / count * groups * 2 * padded + i % count;
      for (int64_t group = 0; group < groups; ++group, sum += 2 * padded) {
        x += sum[0];
        y += sum[padded];
      }
      to[0] = x * A(width);
      to[1] = y * A(height);
    }
  });
}

}  // namespace detops::cpu
