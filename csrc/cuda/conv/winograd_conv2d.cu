// SPDX-License-Identifier: MIT
#include "../../ops.h"
#include "../../products.h"

namespace detops::cuda {

// cuDNN has Winograd's algorithm, and knows when it pays.
void winograd_conv2d_forward(const Tensor& input, const Tensor& weight,
                             const std::optional<Tensor>& bias, IntArrayRef padding,
                             Tensor& output) {
  const ScalarType type = input.scalar_type();
  // PyTorch gives a convolution of no channels another shape than one of a channel of zeros.
  const auto filled = [](const Tensor& t) {
    return t.size(1) > 0 ? t : zeros({t.size(0), 1, t.size(2), t.size(3)}, t.options());
  };
  output.copy_(convolution(filled(input), as_type(filled(weight), type),
                           bias ? as_type(*bias, type) : Tensor(), padding));
}

}  // namespace detops::cuda
