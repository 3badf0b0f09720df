// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/ATen.h>

// The functions that a detector of the maskrcnn-benchmark family calls by position, where they are
// not ops of this package under the same name: written with those, so that every backend has them.
namespace detops::family {

using at::Tensor;

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
