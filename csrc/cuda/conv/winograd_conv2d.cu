// SPDX-License-Identifier: MIT
#include "../../products.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

void add_bias(const Tensor& sums, const Tensor& bias) {
  const int64_t channels = sums.size(1);
  const int64_t channel_stride = is_channels_last(sums) ? 1 : sums.size(2) * sums.size(3);
  DETOPS_FLOAT_SWITCH(sums.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    scalar_t* sum = elements(sums);
    const scalar_t* add = elements(bias);
    for_each(sums.numel(), [=] __device__(int64_t i) {
      sum[i] = scalar_t(A(sum[i]) + A(add[i / channel_stride % channels]));
    });
  });
}

}  // namespace

// Calls PyTorch's convolution: cuDNN implements Winograd's algorithm and uses it when it is faster.
void winograd_conv2d_forward(const Tensor& input, const Tensor& weight,
                             const std::optional<Tensor>& bias, IntArrayRef padding,
                             Tensor& output) {
  if (output.numel() == 0) return;
  // PyTorch gives a convolution without channels a different shape: use a channel of zeros instead.
  const auto pad_channels = [](const Tensor& t) {
    return t.size(1) > 0 ? t : zeros({t.size(0), 1, t.size(2), t.size(3)}, t.options());
  };
  const ScalarType type = promote_types(input.scalar_type(), weight.scalar_type());
  const bool same_type = output.scalar_type() == type;
  const Tensor like = same_type ? output : empty_like(output, output.options().dtype(type));
  const Tensor sums =
      convolution(pad_channels(input.to(type)), pad_channels(weight.to(type)), padding, like)
          .contiguous(output.suggest_memory_format());
  if (bias) add_bias(sums, bias->to(type));
  output.copy_(sums);
}

}  // namespace detops::cuda
