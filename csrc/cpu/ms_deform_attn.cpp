// SPDX-License-Identifier: MIT
#include <ATen/Parallel.h>

#include "../ops.h"
#include "buffer.h"
#include "element_type.h"
#include "kernels/ms_deform_attn.h"
#include "memory.h"

namespace detops::cpu {
namespace {

constexpr int64_t kSamplesPerThread = 4096;

int64_t padded(int64_t n) {
  return (n + kAttentionPadding - 1) / kAttentionPadding * kAttentionPadding;
}

// The tensors as kernels want them, and the levels sample by sample.
template <typename T>
class Attention {
 public:
  using A = accumulate_t<T>;
  using Index = typename AttentionHead<T>::Index;

  Attention(const Tensor& value, const Tensor& spatial_shapes, const Tensor& level_start_index,
            const Tensor& locations, const Tensor& weights)
      : positions(value.size(1)),
        heads(value.size(2)),
        channels(value.size(3)),
        queries(locations.size(1)),
        samples(locations.size(3) * locations.size(4)),
        value_(value.contiguous()),
        locations_(locations.contiguous()),
        weights_(weights.contiguous()),
        levels_(3 * padded(samples)),
        zeros_(channels) {
    const auto shapes = spatial_shapes.accessor<int64_t, 2>();
    const auto starts = level_start_index.accessor<int64_t, 1>();
    const int64_t row = padded(samples), points = locations.size(4);
    std::fill_n(levels_.data(), 3 * row, Index(0));
    for (int64_t i = 0; i < samples; ++i) {
      levels_[i] = static_cast<Index>(shapes[i / points][0]);
      levels_[row + i] = static_cast<Index>(shapes[i / points][1]);
      levels_[2 * row + i] = static_cast<Index>(starts[i / points]);
    }
    std::fill_n(zeros_.data(), channels, T{});
  }

  // Where an image's head begins in tensors like the value.
  int64_t offset(int64_t image, int64_t head) const {
    return (image * positions * heads + head) * channels;
  }

  AttentionHead<T> head(int64_t image, int64_t head) const {
    const int64_t row = padded(samples);
    return {static_cast<const T*>(value_.const_data_ptr()) + offset(image, head),
            heads * channels,
            channels,
            samples,
            padded(channels),
            levels_.data(),
            levels_.data() + row,
            levels_.data() + 2 * row,
            zeros_.data()};
  }

  // `i` counts heads of queries of images.
  const A* locations(int64_t i) const {
    return locations_.template const_data_ptr<A>() + 2 * i * samples;
  }
  const A* weights(int64_t i) const { return weights_.template const_data_ptr<A>() + i * samples; }

  const int64_t positions, heads, channels, queries, samples;

 private:
  Tensor value_, locations_, weights_;
  Buffer<Index> levels_;
  Buffer<T> zeros_;
};

template <typename T>
void forward(const Attention<T>& a, int64_t images, T* output) {
  const int64_t grain =
      std::max<int64_t>(1, kSamplesPerThread / std::max<int64_t>(1, a.heads * a.samples));
  at::parallel_for(0, images * a.queries, grain, [&](int64_t begin, int64_t end) {
    Buffer<accumulate_t<T>> scratch(padded(a.channels));
    for (int64_t i = begin * a.heads; i < end * a.heads; ++i) {
      attention_kernels<T>().forward(a.head(i / (a.heads * a.queries), i % a.heads), a.locations(i),
                                     a.weights(i), output + i * a.channels, scratch.data());
    }
  });
}

// One thread owns a head of an image, and adds its queries in their order.
template <typename T, typename A = accumulate_t<T>>
void backward(const Attention<T>& a, int64_t images, const T* grad, T* to_value, A* to_locations,
              A* to_weights) {
  const auto& kernel = attention_kernels<T>();
  const int64_t row = padded(a.channels);
  at::parallel_for(0, images * a.heads, 1, [&](int64_t begin, int64_t end) {
    Buffer<A> scratch(row), rows((a.positions + 1) * row);
    for (int64_t owned = begin; owned < end; ++owned) {
      const int64_t image = owned / a.heads, head = owned % a.heads;
      const AttentionHead<T> h = a.head(image, head);
      std::fill_n(rows.data(), (a.positions + 1) * row, A(0));
      for (int64_t q = 0; q < a.queries; ++q) {
        const int64_t i = (image * a.queries + q) * a.heads + head;
        kernel.backward(h, a.locations(i), a.weights(i), grad + i * a.channels, rows.data() + row,
                        to_locations + 2 * i * a.samples, to_weights + i * a.samples,
                        scratch.data());
      }
      kernel.store_rows(h, rows.data() + row, a.positions, to_value + a.offset(image, head));
    }
  });
}

void check_levels(const char* op, const Tensor& value, const Tensor& spatial_shapes,
                  const Tensor& level_start_index) {
  TORCH_CHECK(value.size(1) <= INT32_MAX, "detops.", op, ": at most ", INT32_MAX,
              " positions, got ", value.size(1));
  meta::check_levels(op, spatial_shapes, level_start_index, value.size(1));
}

}  // namespace

Tensor ms_deform_attn_forward(const Tensor& value, const Tensor& spatial_shapes,
                              const Tensor& level_start_index, const Tensor& sampling_locations,
                              const Tensor& attention_weights) {
  Tensor output = meta::ms_deform_attn_forward(value, spatial_shapes, level_start_index,
                                               sampling_locations, attention_weights);
  check_levels("ms_deform_attn", value, spatial_shapes, level_start_index);
  if (output.numel() == 0) return output;
  expect_writes(output);
  const at::ScalarType type = value.scalar_type(), wide = compute_type(type);
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    const Attention<T> a(value, spatial_shapes, level_start_index,
                         as_type(sampling_locations, wide), as_type(attention_weights, wide));
    forward(a, value.size(0), static_cast<T*>(output.mutable_data_ptr()));
  });
  return output;
}

std::tuple<Tensor, Tensor, Tensor> ms_deform_attn_backward(const Tensor& grad, const Tensor& value,
                                                           const Tensor& spatial_shapes,
                                                           const Tensor& level_start_index,
                                                           const Tensor& sampling_locations,
                                                           const Tensor& attention_weights) {
  Tensor to_value, to_locations, to_weights;
  std::tie(to_value, to_locations, to_weights) = meta::ms_deform_attn_backward(
      grad, value, spatial_shapes, level_start_index, sampling_locations, attention_weights);
  check_levels("ms_deform_attn_backward", value, spatial_shapes, level_start_index);
  const at::ScalarType type = value.scalar_type(), wide = compute_type(type);
  expect_writes(to_value);
  // Themselves, unless of another dtype.
  const Tensor locations = as_type(to_locations, wide), weights = as_type(to_weights, wide);
  const Tensor outer = as_type(grad, type).contiguous();
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const Attention<T> a(value, spatial_shapes, level_start_index,
                         as_type(sampling_locations, wide), as_type(attention_weights, wide));
    backward(a, value.size(0), static_cast<const T*>(outer.const_data_ptr()),
             static_cast<T*>(to_value.mutable_data_ptr()), locations.mutable_data_ptr<A>(),
             weights.mutable_data_ptr<A>());
  });
  return {to_value, as_type(locations, to_locations.scalar_type()),
          as_type(weights, to_weights.scalar_type())};
}

}  // namespace detops::cpu
