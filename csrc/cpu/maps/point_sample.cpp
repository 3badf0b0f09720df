// SPDX-License-Identifier: MIT
#include "../../math/deform.h"
#include "../../ops.h"
#include "../common/buffer.h"
#include "../common/element_type.h"
#include "../common/memory.h"

namespace detops::cpu {

// A point not all of whose pixels are on the map. One that is on it stands for those beyond, with a
// share of 0; -1 where all are beyond.
template <typename A>
struct EdgePoint {
  int64_t point;
  int64_t pixel[4];
  bool on_map[4];
  A share[4], right, lower;
  A x, y;  // the sums of its gradient
};

// The points of an image. at[i] is the number of the upper left pixel of point i, the others are
// its neighbours; that of an edge point, which is listed apart, is 0.
template <typename A>
struct PlacedPoints {
  using Index = std::conditional_t<sizeof(A) == 8, int64_t, int32_t>;
  Index* at;
  A* share[4];
  A *right, *lower;  // nullptr where no gradient of the points is wanted
  EdgePoint<A>* edge;
  int64_t count, edges;
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../maps/point_sample.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kSamplesPerThread = 8192;
constexpr int64_t kGroup = 32;  // channels whose parts of the points' gradients one thread sums

template <typename A>
int64_t whole_vectors(int64_t count) {
  const int64_t lanes = DETOPS_IN_USE(kLanes<A>);
  return (count + lanes - 1) / lanes * lanes;
}

template <typename A>
class PointPlaces {
 public:
  PointPlaces(int64_t count, bool slopes) : padded(whole_vectors<A>(count)), edges_(count) {
    A* next = shares_.reserve(padded * (slopes ? 6 : 4));
    placed.at = at_.reserve(padded);
    for (A*& share : placed.share) share = next, next += padded;
    placed.right = slopes ? next : nullptr;
    placed.lower = slopes ? next + padded : nullptr;
    placed.edge = edges_.data();
    placed.count = count;
  }

  void place(const A* points, int64_t height, int64_t width) {
    DETOPS_IN_USE(place_points<A>)(points, height, width, placed);
  }

  PlacedPoints<A> placed{};
  const int64_t padded;

 private:
  Buffer<A> shares_;
  Buffer<typename PlacedPoints<A>::Index> at_;
  Buffer<EdgePoint<A>> edges_;
};

template <typename T>
const T* data(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

// Channels in groups, and where their sums are kept until those of a point are added up in order.
template <typename A>
struct Slopes {
  int64_t groups, padded;
  Buffer<A> sums;

  Slopes(int64_t images, int64_t channels, int64_t padded, bool wanted)
      : groups((channels + kGroup - 1) / kGroup),
        padded(padded),
        sums(wanted ? images * groups * 2 * padded : 0) {}

  A* of(int64_t unit) { return sums.data() + unit * 2 * padded; }

  void add_up(int64_t image, int64_t points, int64_t height, int64_t width, A* to_points) {
    for (int64_t p = 0; p < points; ++p) {
      A x = 0, y = 0;
      for (int64_t g = 0; g < groups; ++g) {
        const A* sum = of(image * groups + g) + p;
        x += sum[0];
        y += sum[padded];
      }
      to_points[2 * p] = x * A(width);
      to_points[2 * p + 1] = y * A(height);
    }
  }
};

}  // namespace

void point_sample_forward(const Tensor& input, const Tensor& points, Tensor& output) {
  expect_writes(output);
  const ScalarType type = input.scalar_type();
  const Tensor maps = input.contiguous(), places = wide(points, type);
  const int64_t channels = input.size(1), height = input.size(2), width = input.size(3);
  const int64_t count = points.size(1), grain = std::max<int64_t>(1, kSamplesPerThread / count);
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto kernel = DETOPS_IN_USE(sample_plane<T>);
    const T* from = data<T>(maps);
    const A* place = data<A>(places);
    T* out = static_cast<T*>(output.mutable_data_ptr());
    parallel_for(0, input.size(0) * channels, grain, [&](int64_t begin, int64_t end) {
      PointPlaces<A> p(count, false);
      for (int64_t plane = begin; plane < end; ++plane) {
        if (plane == begin || plane % channels == 0) {
          p.place(place + plane / channels * count * 2, height, width);
        }
        kernel(from + plane * height * width, width, p.placed, out + plane * count);
      }
    });
  });
}

void point_sample_backward(const Tensor& grad, const Tensor& input, const Tensor& points,
                           bool input_wanted, bool points_wanted, Tensor& to_input,
                           Tensor& to_points) {
  expect_writes(to_input);
  const ScalarType type = input.scalar_type();
  const Tensor maps = input.contiguous(), places = wide(points, type);
  const Tensor outer = as_type(grad, type).contiguous();
  const Tensor slopes = as_type(to_points, compute_type(type));  // itself, unless of another dtype
  const int64_t images = input.size(0), channels = input.size(1), count = points.size(1);
  const int64_t height = input.size(2), width = input.size(3), size = height * width;
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto spread = DETOPS_IN_USE(spread_plane<T>);
    const auto slope = DETOPS_IN_USE(add_slopes<T>);
    Slopes<A> sums(images, channels, whole_vectors<A>(count), points_wanted);
    const int64_t units = images * sums.groups;
    const T *from = data<T>(maps), *gradient = data<T>(outer);
    const A* place = data<A>(places);
    T* out = static_cast<T*>(to_input.mutable_data_ptr());
    parallel_for(0, units, 1, [&](int64_t begin, int64_t end) {
      PointPlaces<A> p(count, points_wanted);
      Buffer<A> plane_sums(std::is_same_v<A, T> || !input_wanted ? 0 : size);
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t image = unit / sums.groups, first = unit % sums.groups * kGroup;
        p.place(place + image * count * 2, height, width);
        A* to_x = points_wanted ? sums.of(unit) : nullptr;
        if (points_wanted) std::fill_n(to_x, 2 * p.padded, A(0));
        for (int64_t c = first; c < std::min(first + kGroup, channels); ++c) {
          const int64_t plane = image * channels + c;
          const T* g = gradient + plane * count;
          if (points_wanted) {
            slope(from + plane * size, g, width, p.placed, to_x, to_x + p.padded);
          }
          if (!input_wanted) continue;
          T* to = out + plane * size;
          A* sum = plane_sums.data();
          if constexpr (std::is_same_v<A, T>) sum = to;
          std::fill_n(sum, size, A(0));
          spread(g, width, p.placed, sum);
          if constexpr (!std::is_same_v<A, T>) {
            for (int64_t i = 0; i < size; ++i) math::from_float(sum[i], to[i]);
          }
        }
        for (int64_t e = 0; points_wanted && e < p.placed.edges; ++e) {
          const EdgePoint<A>& edge = p.placed.edge[e];
          to_x[edge.point] = edge.x;
          to_x[p.padded + edge.point] = edge.y;
        }
      }
    });
    if (!points_wanted) return;
    for (int64_t image = 0; image < images; ++image) {
      sums.add_up(image, count, height, width, slopes.mutable_data_ptr<A>() + image * count * 2);
    }
  });
  if (points_wanted) to_points = as_type(slopes, to_points.scalar_type());
}

}  // namespace detops::cpu
