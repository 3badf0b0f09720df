// SPDX-License-Identifier: MIT
#include "../../host/conv_geometry.h"
#include "../common/host.h"

namespace detops::cpu {

// Prefetches memory that will soon be read or written. Its addresses are too scattered for the
// hardware prefetcher.
template <bool kWritten = false>
inline __attribute__((always_inline)) void prefetch(const void* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(static_cast<const char*>(data) + i, kWritten);
  }
}

// Levels of the samples of a query. The arrays are padded for reads of whole vectors.
template <typename A>
struct SampleLevels {
  const lane_index_t<A>*height, *width, *start;
  int64_t samples;
};

// The values of one head of one image.
template <typename T>
struct HeadValues {
  const T* data;  // [S, D], with row stride `stride`
  int64_t stride, channels;
  const T* zeros;  // [D], the values beyond the border
};

// The values of a head next to their gradients, one row per position. Row -1 stands for all
// positions beyond the border. A row holds the values, then the gradients, each padded with zeros
// to `padded` elements, a multiple of the vector size.
template <typename A>
struct HeadRows {
  A* data;
  int64_t channels, padded;
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../deform/ms_deform_attn.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kSamplesPerThread = 4096;

// Queries to prefetch ahead in the backward pass: those of one head are far apart in memory.
constexpr int64_t kPrefetchQueries = 4;

// Arguments in the form that kernels read.
template <typename T>
class Attention {
 public:
  using A = accumulate_t<T>;

  Attention(const Tensor& value, const Tensor& spatial_shapes, const Tensor& level_start_index,
            const Tensor& locations, const Tensor& weights)
      : images(value.size(0)),
        positions(value.size(1)),
        heads(value.size(2)),
        channels(value.size(3)),
        queries(locations.size(1)),
        samples(locations.size(3) * locations.size(4)),
        value_(value.contiguous()),
        locations_(wide(locations, value.scalar_type())),
        weights_(wide(weights, value.scalar_type())),
        value_data_(elements<T>(value_)),
        location_data_(elements<A>(locations_)),
        weight_data_(elements<A>(weights_)),
        levels_(3 * padded(samples)),
        zeros_(channels) {
    const Tensor shapes = spatial_shapes.contiguous(), starts = level_start_index.contiguous();
    const auto *size = shapes.const_data_ptr<int64_t>(), *start = starts.const_data_ptr<int64_t>();
    const int64_t points = locations.size(4), row = padded(samples);
    lane_index_t<A>* height = levels_.data();
    std::fill_n(height, 3 * row, lane_index_t<A>(0));
    for (int64_t i = 0; i < samples; ++i) {
      height[i] = static_cast<lane_index_t<A>>(size[2 * (i / points)]);
      height[row + i] = static_cast<lane_index_t<A>>(size[2 * (i / points) + 1]);
      height[2 * row + i] = static_cast<lane_index_t<A>>(start[i / points]);
    }
    levels = {height, height + row, height + 2 * row, samples};
    std::fill_n(zeros_.data(), channels, T{});
  }

  // Rounds up to whole vectors.
  static int64_t padded(int64_t n) { return round_up(n, DETOPS_IN_USE(kLanes<A>)); }

  // Offset of a head of an image in tensors with the shape of `value`.
  int64_t offset(int64_t image, int64_t head) const {
    return (image * positions * heads + head) * channels;
  }

  HeadValues<T> values(int64_t image, int64_t head) const {
    return {value_data_ + offset(image, head), heads * channels, channels, zeros_.data()};
  }

  // `i` is an index into [image, query, head], flattened.
  const A* locations(int64_t i) const { return location_data_ + 2 * i * samples; }
  const A* weights(int64_t i) const { return weight_data_ + i * samples; }

  const int64_t images, positions, heads, channels, queries, samples;
  SampleLevels<A> levels;

 private:
  Tensor value_, locations_, weights_;
  // Cached: a call to the stable ABI can take as long as a sample.
  const T* value_data_;
  const A *location_data_, *weight_data_;
  Buffer<lane_index_t<A>> levels_;
  Buffer<T> zeros_;
};

// Each thread owns heads of images and adds their queries in order.
template <typename T, typename A = accumulate_t<T>>
void backward(const Attention<T>& a, const A* grad, T* to_value, A* to_locations, A* to_weights) {
  const auto kernel = DETOPS_IN_USE(ms_deform_attn_backward<A>);
  const int64_t padded = a.padded(a.channels), samples = a.samples;
  parallel_for(a.images * a.heads, 1, [&](int64_t begin, int64_t end) {
    Buffer<A> memory((a.positions + 1) * 2 * padded);
    const HeadRows<A> rows{memory.data() + 2 * padded, a.channels, padded};
    for (int64_t image_head = begin; image_head < end; ++image_head) {
      const int64_t image = image_head / a.heads, head = image_head % a.heads;
      const HeadValues<T> values = a.values(image, head);
      const auto index = [&](int64_t q) { return (image * a.queries + q) * a.heads + head; };
      DETOPS_IN_USE(load_attention_rows<T>)(values, a.positions, rows);
      for (int64_t q = 0; q < a.queries; ++q) {
        const int64_t i = index(q), next = index(std::min(q + kPrefetchQueries, a.queries - 1));
        prefetch(grad + next * a.channels, a.channels * sizeof(A));
        prefetch(a.locations(next), 2 * samples * sizeof(A));
        prefetch(a.weights(next), samples * sizeof(A));
        kernel(a.levels, rows, a.locations(i), a.weights(i), grad + i * a.channels,
               to_locations + 2 * i * samples, to_weights + i * samples);
      }
      DETOPS_IN_USE(store_attention_rows<T>)(rows, a.positions, values,
                                             to_value + a.offset(image, head));
    }
  });
}

}  // namespace

void ms_deform_attn_forward(const Tensor& value, const Tensor& spatial_shapes,
                            const Tensor& level_start_index, const Tensor& sampling_locations,
                            const Tensor& attention_weights, Tensor& output) {
  check_levels("ms_deform_attn", spatial_shapes, level_start_index, value.size(1));
  with_element_type(value.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const Attention<T> a(value, spatial_shapes, level_start_index, sampling_locations,
                         attention_weights);
    const auto kernel = DETOPS_IN_USE(ms_deform_attn_forward<T>);
    const int64_t grain = grain_for(kSamplesPerThread, a.heads * a.samples);
    T* out = mutable_elements<T>(output);
    parallel_for(a.images * a.queries, grain, [&](int64_t begin, int64_t end) {
      Buffer<accumulate_t<T>> scratch(a.padded(a.channels));
      for (int64_t i = begin * a.heads; i < end * a.heads; ++i) {
        const int64_t image = i / (a.heads * a.queries);
        kernel(a.levels, a.values(image, i % a.heads), a.locations(i), a.weights(i),
               out + i * a.channels, scratch.data());
      }
    });
  });
}

void ms_deform_attn_backward(const Tensor& grad, const Tensor& value, const Tensor& spatial_shapes,
                             const Tensor& level_start_index, const Tensor& sampling_locations,
                             const Tensor& attention_weights, Tensor& to_value,
                             Tensor& to_locations, Tensor& to_weights) {
  check_levels("ms_deform_attn_backward", spatial_shapes, level_start_index, value.size(1));
  const ScalarType type = value.scalar_type(), wide = compute_type(type);
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const Attention<T> a(value, spatial_shapes, level_start_index, sampling_locations,
                         attention_weights);
    const Tensor upstream = grad.to(wide).contiguous();
    backward(a, elements<A>(upstream), mutable_elements<T>(to_value),
             mutable_elements<A>(to_locations), mutable_elements<A>(to_weights));
  });
}

}  // namespace detops::cpu
