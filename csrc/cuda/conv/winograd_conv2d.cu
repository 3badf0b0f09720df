// SPDX-License-Identifier: MIT
#include "../../ops.h"
#include "../../products.h"

namespace detops::cuda {

// cuDNN has Winograd's algorithm, and knows when it pays.
void winograd_conv2d_forward(const Tensor& input, const Tensor& weight,
                             const std::optional<Tensor>& bias, IntArrayRef padding,
                             Tensor& output) {
  const ScalarType type = input.scalar_type();
  output.copy_(
      convolution(input, as_type(weight, type), bias ? as_type(*bias, type) : Tensor(), padding));
}

}  // namespace detops::cuda
