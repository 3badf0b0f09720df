// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/ATen.h>

// clang-format off
#define DETOPS_FAMILY_OPS(op) \
  op(deform_conv_forward) \
  op(deform_conv_backward_input) \
  op(deform_conv_backward_parameters) \
  op(modulated_deform_conv_forward) \
  op(modulated_deform_conv_backward) \
  op(deform_psroi_pooling_forward) \
  op(deform_psroi_pooling_backward) \
  op(sigmoid_focalloss_forward) \
  op(sigmoid_focalloss_backward)
// clang-format on

// The functions that a detector of the maskrcnn-benchmark family calls by position, where they are
// not ops of this package under the same name: written with those, so that every backend has them.
namespace detops::family {

using at::Tensor;

// A buffer to write into: floating, on the device of `like`, and memory of its own: what is written
// to a view of negated numbers would be negated.
void check_buffer(const char* op, const char* name, const Tensor& buffer, const Tensor& like);

// Buffers that a caller left empty, or made too small, take the size of what is written.
void write(const Tensor& to, const Tensor& from);

// Deformable convolution. Sizes along x come before those along y in the first three, `columns` and
// `ones` are left alone, and the batch need not be a multiple of `im2col_step`. All return 1.
int64_t deform_conv_forward(const Tensor& input, const Tensor& weight, const Tensor& offset,
                            const Tensor& output, const Tensor& columns, const Tensor& ones,
                            int64_t kernel_w, int64_t kernel_h, int64_t stride_w, int64_t stride_h,
                            int64_t pad_w, int64_t pad_h, int64_t dilation_w, int64_t dilation_h,
                            int64_t group, int64_t deformable_group, int64_t im2col_step);

int64_t deform_conv_backward_input(const Tensor& input, const Tensor& offset,
                                   const Tensor& grad_output, const Tensor& grad_input,
                                   const Tensor& grad_offset, const Tensor& weight,
                                   const Tensor& columns, int64_t kernel_w, int64_t kernel_h,
                                   int64_t stride_w, int64_t stride_h, int64_t pad_w, int64_t pad_h,
                                   int64_t dilation_w, int64_t dilation_h, int64_t group,
                                   int64_t deformable_group, int64_t im2col_step);

// Adds `scale` times the gradient to `grad_weight`.
int64_t deform_conv_backward_parameters(const Tensor& input, const Tensor& offset,
                                        const Tensor& grad_output, const Tensor& grad_weight,
                                        const Tensor& columns, const Tensor& ones, int64_t kernel_w,
                                        int64_t kernel_h, int64_t stride_w, int64_t stride_h,
                                        int64_t pad_w, int64_t pad_h, int64_t dilation_w,
                                        int64_t dilation_h, int64_t group, int64_t deformable_group,
                                        double scale, int64_t im2col_step);

void modulated_deform_conv_forward(const Tensor& input, const Tensor& weight, const Tensor& bias,
                                   const Tensor& ones, const Tensor& offset, const Tensor& mask,
                                   const Tensor& output, const Tensor& columns, int64_t kernel_h,
                                   int64_t kernel_w, int64_t stride_h, int64_t stride_w,
                                   int64_t pad_h, int64_t pad_w, int64_t dilation_h,
                                   int64_t dilation_w, int64_t group, int64_t deformable_group,
                                   bool with_bias);

// Adds to `grad_weight` and `grad_bias`; the other gradients are set.
void modulated_deform_conv_backward(const Tensor& input, const Tensor& weight, const Tensor& bias,
                                    const Tensor& ones, const Tensor& offset, const Tensor& mask,
                                    const Tensor& columns, const Tensor& grad_input,
                                    const Tensor& grad_weight, const Tensor& grad_bias,
                                    const Tensor& grad_offset, const Tensor& grad_mask,
                                    const Tensor& grad_output, int64_t kernel_h, int64_t kernel_w,
                                    int64_t stride_h, int64_t stride_w, int64_t pad_h,
                                    int64_t pad_w, int64_t dilation_h, int64_t dilation_w,
                                    int64_t group, int64_t deformable_group, bool with_bias);

// Class k is column k - 1 of the logits; 0 is the background, and a negative target is ignored.
Tensor sigmoid_focalloss_forward(const Tensor& logits,                              // [N, C]
                                 const Tensor& targets,                             // [N] integer
                                 int64_t num_classes, double gamma, double alpha);  // -> [N, C]
Tensor sigmoid_focalloss_backward(const Tensor& logits, const Tensor& targets,
                                  const Tensor& d_losses,  // [N, C]
                                  int64_t num_classes, double gamma, double alpha);

void deform_psroi_pooling_forward(const Tensor& input, const Tensor& bbox, const Tensor& trans,
                                  Tensor out, Tensor top_count, int64_t no_trans,
                                  double spatial_scale, int64_t output_dim, int64_t group_size,
                                  int64_t pooled_size, int64_t part_size, int64_t sample_per_part,
                                  double trans_std);

// Adds to input_grad and trans_grad.
void deform_psroi_pooling_backward(const Tensor& out_grad, const Tensor& input, const Tensor& bbox,
                                   const Tensor& trans, const Tensor& top_count, Tensor input_grad,
                                   Tensor trans_grad, int64_t no_trans, double spatial_scale,
                                   int64_t output_dim, int64_t group_size, int64_t pooled_size,
                                   int64_t part_size, int64_t sample_per_part, double trans_std);

}  // namespace detops::family
