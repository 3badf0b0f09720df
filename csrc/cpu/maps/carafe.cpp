// SPDX-License-Identifier: MIT
#include "../../maps/maps.h"
#include "../common/host.h"

namespace detops::cpu {

// Rows are padded to whole vectors, and by `radius` more pixels on either side.
struct ReassemblyRows : Reassembly {
  int64_t whole, padded;

  ReassemblyRows(const Reassembly& g, int64_t lanes)
      : Reassembly(g), whole(round_up(width, lanes)), padded(whole + 2 * radius()) {}

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
constexpr int kTogether = 4;  // channels per call of a kernel

// Calls visit(scratch, own, row) for each row of features and each group. `own` is an index into
// [image, group], flattened. Each thread has `size` elements of scratch memory.
template <typename A, typename Visit>
void each_row(const Reassembly& g, int64_t size, const Visit& visit) {
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
void each_channels(const Reassembly& g, int64_t own, const Visit& visit) {
  const int64_t end = (own + 1) * g.group_channels();
  int64_t plane = own * g.group_channels();
  for (; plane + kTogether <= end; plane += kTogether) {
    visit(std::integral_constant<int, kTogether>(), plane);
  }
  for (; plane < end; ++plane) visit(std::integral_constant<int, 1>(), plane);
}

template <typename A>
void to_features_of(const ReassemblyRows& g, const A* grad, const A* masks, A* to_features) {
  const int64_t of_masks = g.taps() * g.phases() * g.padded;
  const int64_t of_rows = kTogether * g.kernel * g.phases() * g.padded;
  each_row<A>(g, of_masks + of_rows, [&](A* scratch, int64_t own, int64_t row) {
    DETOPS_IN_USE(load_reached_masks<A>)
    (g, masks + own * g.taps() * g.output_size(), row, scratch);
    each_channels(g, own, [&](auto n, int64_t plane) {
      DETOPS_IN_USE(gather_feature_gradients<n, A>)
      (g, scratch, grad + plane * g.output_size(), row, scratch + of_masks,
       to_features + plane * g.size());
    });
  });
}

template <typename A>
void to_masks_of(const ReassemblyRows& g, const A* grad, const A* features, A* to_masks) {
  const int64_t of_masks = g.taps() * g.phases() * g.whole;
  const int64_t of_split = kTogether * g.phases() * g.whole;
  const int64_t of_rows = kTogether * g.kernel * g.padded;
  each_row<A>(g, of_masks + of_split + of_rows, [&](A* scratch, int64_t own, int64_t row) {
    std::fill_n(scratch, of_masks, A(0));
    A *split = scratch + of_masks, *rows = split + of_split;
    each_channels(g, own, [&](auto n, int64_t plane) {
      DETOPS_IN_USE(add_mask_gradients<n, A>)
      (g, grad + plane * g.output_size(), features + plane * g.size(), row, rows, split, scratch);
    });
    DETOPS_IN_USE(store_masks<A>)
    (g, scratch, row, to_masks + own * g.taps() * g.output_size());
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
    const int64_t of_masks = g.taps() * g.phases() * g.whole;
    const int64_t of_sums = kTogether * g.scale * g.whole;
    const int64_t of_rows = kTogether * g.kernel * g.padded;
    const T* from = elements<T>(maps);
    const A* weight = elements<A>(weights);
    T* to = mutable_elements<T>(output);
    each_row<A>(g, of_masks + of_sums + of_rows, [&](A* scratch, int64_t own, int64_t row) {
      A *sums = scratch + of_masks, *rows = sums + of_sums;
      DETOPS_IN_USE(load_masks<A>)
      (g, weight + own * g.taps() * g.output_size(), row, scratch);
      each_channels(g, own, [&](auto n, int64_t plane) {
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
  const Tensor maps = wide(features), weights = wide(masks, type), outer = wide(grad, type);
  DETOPS_WIDE_SWITCH(wider, [&] {
    using A = scalar_t;
    const ReassemblyRows g(sizes, DETOPS_IN_USE(kLanes<A>));
    if (features_wanted && to_features.numel() > 0) {
      to_features_of(g, elements<A>(outer), elements<A>(weights), mutable_elements<A>(to_features));
    }
    if (masks_wanted && to_masks.numel() > 0) {
      to_masks_of(g, elements<A>(outer), elements<A>(maps), mutable_elements<A>(to_masks));
    }
  });
}

}  // namespace detops::cpu
