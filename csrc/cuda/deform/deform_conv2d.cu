// SPDX-License-Identifier: MIT
#include "deform_conv2d.cuh"

namespace detops::cuda {

void deform_conv2d_forward(const Tensor& input, const Tensor& offset,
                           const std::optional<Tensor>& mask, const Tensor& weight,
                           const std::optional<Tensor>& bias, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef dilation, Tensor& output) {
  const DeformGeometry g(input, offset, weight, stride, padding, dilation);
  const ScalarType type = compute_type(input.scalar_type());
  const DeformInputs in(g, type, input, offset, mask, weight);
  // [N, H, W, O]: the output itself where it has that order and type.
  const Tensor last = output.permute({0, 2, 3, 1});
  const bool direct = output.scalar_type() == type && last.is_contiguous();
  const Tensor sums = direct ? last : empty(last.sizes(), in.weight.options());
  if (bias) sums.copy_(*bias);  // for each position
  const Tensor rows = sums.view({g.images * g.positions(), g.groups, g.group_outputs()});
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    each_chunk(g, [&](int64_t first, int64_t count) {
      const Tensor columns = make_columns(in.params<scalar_t>(g, first, count), in.weight);
      Tensor to = rows.narrow(0, first, count).transpose(0, 1);
      if (bias) {
        baddbmm_out(to, to, columns, in.weight.transpose(1, 2));
      } else {
        bmm_out(to, columns, in.weight.transpose(1, 2));
      }
    });
  });
  if (!direct) output.copy_(sums.permute({0, 3, 1, 2}));
}

}  // namespace detops::cuda
