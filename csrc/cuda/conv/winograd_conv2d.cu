// SPDX-License-Identifier: MIT
#include "../../ops.h"
#include "../../products.h"

namespace detops::cuda {

namespace {

// Of one channel of zeros: PyTorch gives a convolution of no channels another shape.
Tensor one_channel(const Tensor& t) {
  return zeros({t.size(0), 1, t.size(2), t.size(3)}, t.options());
}

}  // namespace

// cuDNN has Winograd's algorithm, and knows when it pays.
void winograd_conv2d_forward(const Tensor& input, const Tensor& weight,
                             const std::optional<Tensor>& bias, IntArrayRef padding,
                             Tensor& output) {
  const ScalarType type = input.scalar_type();
  const bool none = input.size(1) == 0;
  output.copy_(convolution(none ? one_channel(input) : input,
                           as_type(none ? one_channel(weight) : weight, type),
                           bias ? as_type(*bias, type) : Tensor(), padding));
}

}  // namespace detops::cuda
