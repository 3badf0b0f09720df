// SPDX-License-Identifier: MIT
#include "../../maps/maps.h"

#include "../../ops.h"
#include "../common/buffer.h"
#include "../common/element_type.h"
#include "../common/memory.h"

#define DETOPS_KERNELS "../maps/carafe.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kProductsPerThread = 1 << 16;
constexpr int kTogether = 4;  // channels

template <typename T>
const T* data(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

template <typename T>
T* mutable_data(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

// Calls visit(scratch, image, row, group) for each group of each row of features; a thread has
// scratch memory of `size` numbers.
template <typename A, typename Visit>
void each_row(const Reassembly& g, int64_t size, const Visit& visit) {
  const int64_t work = std::max<int64_t>(1, g.channels * g.taps() * g.output_size() / g.height);
  const int64_t grain = std::max<int64_t>(1, kProductsPerThread / work);
  parallel_for(0, g.images * g.height, grain, [&](int64_t begin, int64_t end) {
    Buffer<A> scratch(size);
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t group = 0; group < g.groups; ++group) {
        visit(scratch.data(), i / g.height, i % g.height, group);
      }
    }
  });
}

// Calls visit(std::integral_constant<int, n>(), first) for n channels at a time.
template <typename Visit>
void each_channels(const Reassembly& g, const Visit& visit) {
  int64_t c = 0;
  for (; c + kTogether <= g.group_channels(); c += kTogether) {
    visit(std::integral_constant<int, kTogether>(), c);
  }
  for (; c < g.group_channels(); ++c) visit(std::integral_constant<int, 1>(), c);
}

template <typename T>
void to_features_of(const Reassembly& g, const T* grad, const T* masks, T* to_features) {
  using A = accumulate_t<T>;
  const int64_t padded = DETOPS_IN_USE(RowSizes<A>(g).padded);
  const int64_t of_masks = g.taps() * g.scale * g.scale * padded;
  const int64_t of_rows = kTogether * g.kernel * g.scale * g.scale * padded;
  each_row<A>(g, of_masks + of_rows, [&](A* scratch, int64_t image, int64_t row, int64_t group) {
    const int64_t own = image * g.groups + group;
    DETOPS_IN_USE(load_reached_masks<T>)
    (g, masks + own * g.taps() * g.output_size(), row, scratch);
    each_channels(g, [&](auto n, int64_t c) {
      const int64_t plane = own * g.group_channels() + c;
      DETOPS_IN_USE(gather_feature_gradients<n, T>)
      (g, scratch, grad + plane * g.output_size(), row, scratch + of_masks,
       to_features + plane * g.size());
    });
  });
}

template <typename T>
void to_masks_of(const Reassembly& g, const T* grad, const T* features, T* to_masks) {
  using A = accumulate_t<T>;
  const int64_t whole = DETOPS_IN_USE(RowSizes<A>(g).whole);
  const int64_t padded = DETOPS_IN_USE(RowSizes<A>(g).padded);
  const int64_t of_masks = g.taps() * g.scale * g.scale * whole;
  const int64_t of_split = kTogether * g.scale * g.scale * whole;
  each_row<A>(g, of_masks + of_split + kTogether * g.kernel * padded,
              [&](A* scratch, int64_t image, int64_t row, int64_t group) {
                const int64_t own = image * g.groups + group;
                std::fill_n(scratch, of_masks, A(0));
                A *split = scratch + of_masks, *rows = split + of_split;
                each_channels(g, [&](auto n, int64_t c) {
                  const int64_t plane = own * g.group_channels() + c;
                  DETOPS_IN_USE(add_mask_gradients<n, T>)
                  (g, grad + plane * g.output_size(), features + plane * g.size(), row, rows, split,
                   scratch);
                });
                DETOPS_IN_USE(store_masks<T>)
                (g, scratch, row, to_masks + own * g.taps() * g.output_size());
              });
}

}  // namespace

void carafe_forward(const Tensor& features, const Tensor& masks, int64_t kernel_size,
                    int64_t group_size, int64_t scale_factor, Tensor& output) {
  expect_writes(output);
  const ScalarType type = features.scalar_type();
  const Reassembly g(features, kernel_size, group_size, scale_factor);
  const Tensor maps = features.contiguous(), weights = wide(masks, type);
  with_element_type(type, [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const int64_t whole = DETOPS_IN_USE(RowSizes<A>(g).whole);
    const int64_t padded = DETOPS_IN_USE(RowSizes<A>(g).padded);
    const int64_t of_masks = g.taps() * g.scale * g.scale * whole;
    const int64_t of_sums = kTogether * g.scale * whole;
    const T* from = data<T>(maps);
    const A* weight = data<A>(weights);
    T* to = mutable_data<T>(output);
    each_row<A>(g, of_masks + of_sums + kTogether * g.kernel * padded,
                [&](A* scratch, int64_t image, int64_t row, int64_t group) {
                  const int64_t own = image * g.groups + group;
                  A *sums = scratch + of_masks, *rows = sums + of_sums;
                  DETOPS_IN_USE(load_masks<A>)
                  (g, weight + own * g.taps() * g.output_size(), row, scratch);
                  each_channels(g, [&](auto n, int64_t c) {
                    const int64_t plane = own * g.group_channels() + c;
                    DETOPS_IN_USE(reassemble_row<n, T>)
                    (g, scratch, from + plane * g.size(), row, rows, sums,
                     to + plane * g.output_size());
                  });
                });
  });
}

void carafe_backward(const Tensor& grad, const Tensor& features, const Tensor& masks,
                     int64_t kernel_size, int64_t group_size, int64_t scale_factor,
                     bool features_wanted, bool masks_wanted, Tensor& to_features,
                     Tensor& to_masks) {
  expect_writes(to_features);
  expect_writes(to_masks);
  const ScalarType type = features.scalar_type(), wider = compute_type(type);
  const Reassembly g(features, kernel_size, group_size, scale_factor);
  // All in the type that is summed in.
  const Tensor maps = wide(features), weights = wide(masks, type), outer = wide(grad, type);
  const Tensor slopes = as_type(to_features, wider), mask_slopes = as_type(to_masks, wider);
  DETOPS_WIDE_SWITCH(wider, [&] {
    using A = scalar_t;
    if (features_wanted && slopes.numel() > 0) {
      to_features_of<A>(g, data<A>(outer), data<A>(weights), mutable_data<A>(slopes));
    }
    if (masks_wanted && mask_slopes.numel() > 0) {
      to_masks_of<A>(g, data<A>(outer), data<A>(maps), mutable_data<A>(mask_slopes));
    }
  });
  to_features = as_type(slopes, features.scalar_type());
  to_masks = as_type(mask_slopes, masks.scalar_type());
}

}  // namespace detops::cpu
