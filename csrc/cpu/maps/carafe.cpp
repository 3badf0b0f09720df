// SPDX-License-Identifier: MIT
#include "../../host/map_geometry.h"
#include "../common/host.h"

namespace detops::cpu {

// Rows are padded to whole vectors, and by `radius` more pixels on either side.
struct ReassemblyRows : Reassembly {
  int64_t aligned_width, padded_width;

  ReassemblyRows(const Reassembly& g, int64_t lanes)
      : Reassembly(g),
        aligned_width(round_up(width, lanes)),
        padded_width(aligned_width + 2 * radius()) {}

  int64_t phases() const { return scale * scale; }
  // Offset of output row py of a row of features.
  int64_t output_row(int64_t row, int64_t py) const { return (scale * row + py) * output_width(); }
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../maps/carafe.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kProductsPerThread = 1 << 16;
constexpr int kChannelBlock = 4;  // channels per call of a kernel

// Calls visit(scratch, image_group, row) for each row of features and each group. `image_group` is
// an index into [image, group], flattened. Each thread has `size` elements of scratch memory.
template <typename A, typename Visit>
void parallel_rows(const Reassembly& g, int64_t size, const Visit& visit) {
  const int64_t work = g.channels * g.taps() * g.output_size() / g.height;
  const int64_t grain = grain_for(kProductsPerThread, work);
  parallel_for(g.images * g.height, grain, [&](int64_t begin, int64_t end) {
    Buffer<A> scratch(size);
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t group = 0; group < g.groups; ++group) {
        visit(scratch.data(), i / g.height * g.groups + group, i % g.height);
      }
    }
  });
}

// Calls visit(std::integral_constant<int, n>(), plane) for n channels of a group at a time.
template <typename Visit>
void for_each_channel_block(const Reassembly& g, int64_t image_group, const Visit& visit) {
  const int64_t end = (image_group + 1) * g.group_channels();
  int64_t plane = image_group * g.group_channels();
  for (; plane + kChannelBlock <= end; plane += kChannelBlock) {
    visit(std::integral_constant<int, kChannelBlock>(), plane);
  }
  for (; plane < end; ++plane) visit(std::integral_constant<int, 1>(), plane);
}

template <typename A>
void feature_gradients(const ReassemblyRows& g, const A* grad, const A* masks, A* to_features) {
  const int64_t masks_size = g.taps() * g.phases() * g.padded_width;
  const int64_t rows_size = kChannelBlock * g.kernel * g.phases() * g.padded_width;
  parallel_rows<A>(g, masks_size + rows_size, [&](A* scratch, int64_t image_group, int64_t row) {
    DETOPS_IN_USE(load_reached_masks<A>)
    (g, masks + image_group * g.taps() * g.output_size(), row, scratch);
    for_each_channel_block(g, image_group, [&](auto n, int64_t plane) {
      DETOPS_IN_USE(gather_feature_gradients<n, A>)
      (g, scratch, grad + plane * g.output_size(), row, scratch + masks_size,
       to_features + plane * g.size());
    });
  });
}

template <typename A>
void mask_gradients(const ReassemblyRows& g, const A* grad, const A* features, A* to_masks) {
  const int64_t masks_size = g.taps() * g.phases() * g.aligned_width;
  const int64_t split_size = kChannelBlock * g.phases() * g.aligned_width;
  const int64_t rows_size = kChannelBlock * g.kernel * g.padded_width;
  parallel_rows<A>(g, masks_size + split_size + rows_size,
                   [&](A* scratch, int64_t image_group, int64_t row) {
                     std::fill_n(scratch, masks_size, A(0));
                     A *split = scratch + masks_size, *rows = split + split_size;
                     for_each_channel_block(g, image_group, [&](auto n, int64_t plane) {
                       DETOPS_IN_USE(add_mask_gradients<n, A>)
                       (g, grad + plane * g.output_size(), features + plane * g.size(), row, rows,
                        split, scratch);
                     });
                     DETOPS_IN_USE(store_masks<A>)
                     (g, scratch, row, to_masks + image_group * g.taps() * g.output_size());
                   });
}

}  // namespace

void carafe_forward(const Tensor& features, const Tensor& masks, int64_t kernel_size,
                    int64_t group_size, int64_t scale_factor, Tensor& output) {
  const ScalarType type = features.scalar_type();
  const Reassembly sizes(features, kernel_size, group_size, scale_factor);
  const Tensor maps = features.contiguous(), weights = wide(masks, type);
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const ReassemblyRows g(sizes, DETOPS_IN_USE(kLanes<A>));
    const int64_t masks_size = g.taps() * g.phases() * g.aligned_width;
    const int64_t sums_size = kChannelBlock * g.scale * g.aligned_width;
    const int64_t rows_size = kChannelBlock * g.kernel * g.padded_width;
    const T* from = elements<T>(maps);
    const A* weight = elements<A>(weights);
    T* to = mutable_elements<T>(output);
    parallel_rows<A>(
        g, masks_size + sums_size + rows_size, [&](A* scratch, int64_t image_group, int64_t row) {
          A *sums = scratch + masks_size, *rows = sums + sums_size;
          DETOPS_IN_USE(load_masks<A>)
          (g, weight + image_group * g.taps() * g.output_size(), row, scratch);
          for_each_channel_block(g, image_group, [&](auto n, int64_t plane) {
            DETOPS_IN_USE(reassemble_row<n, T>)
            (g, scratch, from + plane * g.size(), row, rows, sums, to + plane * g.output_size());
          });
        });
  });
}

void carafe_backward(const Tensor& grad, const Tensor& features, const Tensor& masks,
                     int64_t kernel_size, int64_t group_size, int64_t scale_factor,
                     bool features_wanted, bool masks_wanted, Tensor& to_features,
                     Tensor& to_masks) {
  const ScalarType type = features.scalar_type(), wider = compute_type(type);
  const Reassembly sizes(features, kernel_size, group_size, scale_factor);
  // Everything in the accumulation type.
  const Tensor maps = wide(features), weights = wide(masks, type), upstream = wide(grad, type);
  DETOPS_WIDE_SWITCH(wider, [&] {
    using A = scalar_t;
    const ReassemblyRows g(sizes, DETOPS_IN_USE(kLanes<A>));
    if (features_wanted && to_features.numel() > 0) {
      feature_gradients(g, elements<A>(upstream), elements<A>(weights),
                        mutable_elements<A>(to_features));
    }
    if (masks_wanted && to_masks.numel() > 0) {
      mask_gradients(g, elements<A>(upstream), elements<A>(maps), mutable_elements<A>(to_masks));
    }
  });
}

}  // namespace detops::cpu
