// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/ATen.h>

// The functions that a detector of the maskrcnn-benchmark family calls by position, where they are
// not ops of this package under the same name: written with those, so that every backend has them.
namespace detops::family {

using at::Tensor;

// Class k is column k - 1 of the logits; 0 is the background, and a negative target is ignored.
Tensor sigmoid_focalloss_forward(const Tensor& logits,                              // [N, C]
                                 const Tensor& targets,                             // [N] integer
                                 int64_t num_classes, double gamma, double alpha);  // -> [N, C]
Tensor sigmoid_focalloss_backward(const Tensor& logits, const Tensor& targets,
                                  const Tensor& d_losses,  // [N, C]
                                  int64_t num_classes, double gamma, double alpha);

}  // namespace detops::family
