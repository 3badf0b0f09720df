// SPDX-License-Identifier: MIT
// The dispatch page of the family's functions. Each is written with ops that have kernels, and so
// runs wherever they do.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "../guard.h"
#include "family.h"

TORCH_LIBRARY_FRAGMENT(detops, m) {
  m.def(
      "deform_conv_forward(Tensor input, Tensor weight, Tensor offset, Tensor(a!) output, "
      "Tensor columns, Tensor ones, int kW, int kH, int dW, int dH, int padW, int padH, "
      "int dilationW, int dilationH, int group, int deformable_group, int im2col_step) -> int");
  m.def(
      "deform_conv_backward_input(Tensor input, Tensor offset, Tensor gradOutput, "
      "Tensor(a!) gradInput, Tensor(b!) gradOffset, Tensor weight, Tensor columns, int kW, int kH, "
      "int dW, int dH, int padW, int padH, int dilationW, int dilationH, int group, "
      "int deformable_group, int im2col_step) -> int");
  m.def(
      "deform_conv_backward_parameters(Tensor input, Tensor offset, Tensor gradOutput, "
      "Tensor(a!) gradWeight, Tensor columns, Tensor ones, int kW, int kH, int dW, int dH, "
      "int padW, int padH, int dilationW, int dilationH, int group, int deformable_group, "
      "float scale, int im2col_step) -> int");
  m.def(
      "modulated_deform_conv_forward(Tensor input, Tensor weight, Tensor bias, Tensor ones, "
      "Tensor offset, Tensor mask, Tensor(a!) output, Tensor columns, int kernel_h, int kernel_w, "
      "int stride_h, int stride_w, int pad_h, int pad_w, int dilation_h, int dilation_w, "
      "int group, int deformable_group, bool with_bias) -> ()");
  m.def(
      "modulated_deform_conv_backward(Tensor input, Tensor weight, Tensor bias, Tensor ones, "
      "Tensor offset, Tensor mask, Tensor columns, Tensor(a!) grad_input, Tensor(b!) grad_weight, "
      "Tensor(c!) grad_bias, Tensor(d!) grad_offset, Tensor(e!) grad_mask, Tensor grad_output, "
      "int kernel_h, int kernel_w, int stride_h, int stride_w, int pad_h, int pad_w, "
      "int dilation_h, int dilation_w, int group, int deformable_group, bool with_bias) -> ()");
  m.def(
      "deform_psroi_pooling_forward(Tensor input, Tensor bbox, Tensor trans, Tensor(a!) out, "
      "Tensor(b!) top_count, int no_trans, float spatial_scale, int output_dim, int group_size, "
      "int pooled_size, int part_size, int sample_per_part, float trans_std) -> ()");
  m.def(
      "deform_psroi_pooling_backward(Tensor out_grad, Tensor input, Tensor bbox, Tensor trans, "
      "Tensor top_count, Tensor(a!) input_grad, Tensor(b!) trans_grad, int no_trans, "
      "float spatial_scale, int output_dim, int group_size, int pooled_size, int part_size, "
      "int sample_per_part, float trans_std) -> ()");
  m.def(
      "sigmoid_focalloss_forward(Tensor logits, Tensor targets, int num_classes, float gamma, "
      "float alpha) -> Tensor");
  m.def(
      "sigmoid_focalloss_backward(Tensor logits, Tensor targets, Tensor d_losses, "
      "int num_classes, float gamma, float alpha) -> Tensor");
}

namespace {
namespace name_of {

#define DETOPS_NAME_OF(op) constexpr char op[] = #op;
DETOPS_FAMILY_OPS(DETOPS_NAME_OF)

}  // namespace name_of
}  // namespace

#define DETOPS_NAME(op) #op,
#define DETOPS_IMPL(op) m.impl(#op, detops::guarded<name_of::op, &detops::family::op>());
TORCH_LIBRARY_IMPL(detops, CompositeExplicitAutograd, m){DETOPS_FAMILY_OPS(DETOPS_IMPL)}
#define DETOPS_NO_DERIVATIVE(op) m.impl(#op, torch::autograd::autogradNotImplementedFallback());
TORCH_LIBRARY_IMPL(detops, Autograd, m){DETOPS_FAMILY_OPS(DETOPS_NO_DERIVATIVE)}

// The dispatcher would hand out copies of views of negated or conjugated numbers, and a buffer that
// takes its size would then have another than the copy.
TORCH_LIBRARY_IMPL(detops, Negative, m) {
  for (const char* op : {DETOPS_FAMILY_OPS(DETOPS_NAME)}) {
    m.impl(op, torch::CppFunction::makeFallthrough());
  }
}
TORCH_LIBRARY_IMPL(detops, Conjugate, m) {
  for (const char* op : {DETOPS_FAMILY_OPS(DETOPS_NAME)}) {
    m.impl(op, torch::CppFunction::makeFallthrough());
  }
}
