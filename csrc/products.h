// SPDX-License-Identifier: MIT
#pragma once

#include "tensor.h"

#ifdef USE_CUDA
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>
#define DETOPS_ATEN(op, ...) DETOPS_STABLE(aoti_torch_cuda_##op, __VA_ARGS__)
#else
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#define DETOPS_ATEN(op, ...) DETOPS_STABLE(aoti_torch_cpu_##op, __VA_ARGS__)
#endif

// Matrix products by the library that PyTorch uses on the device. They write into existing tensors,
// and autocast does not change them.
namespace detops {

// out = left right
inline void mm_out(const Tensor& out, const Tensor& left, const Tensor& right) {
  DETOPS_ATEN(mm_out, out.handle(), left.handle(), right.handle());
}

// out = bias + left right; `bias` may be `out` itself.
inline void addmm_out(const Tensor& out, const Tensor& bias, const Tensor& left,
                      const Tensor& right) {
  DETOPS_ATEN(addmm_out, out.handle(), bias.handle(), left.handle(), right.handle(), 1, 1);
}

// The same for each matrix of a batch.
inline void bmm_out(const Tensor& out, const Tensor& left, const Tensor& right) {
  DETOPS_ATEN(bmm_out, out.handle(), left.handle(), right.handle());
}

inline void baddbmm_out(const Tensor& out, const Tensor& bias, const Tensor& left,
                        const Tensor& right) {
  DETOPS_ATEN(baddbmm_out, out.handle(), bias.handle(), left.handle(), right.handle(), 1, 1);
}

// out = sum over the rows of a matrix, [1, columns]
inline void sum_of_rows_out(const Tensor& out, const Tensor& t) {
  mm_out(out, empty({1, t.size(0)}, t.options()).fill_(1), t);
}

// Convolution with stride 1, in the shape and type of `like`. Computed as the derivative of a
// transposed convolution, because autocast does not change that either.
inline Tensor convolution(const Tensor& input, const Tensor& weight, IntArrayRef padding,
                          const Tensor& like) {
  const int64_t ones[] = {1, 1}, output_padding[] = {0, 0};
  const int32_t output_mask[] = {1, 0, 0};
  AtenTensorHandle output = nullptr, grad_weight = nullptr, grad_bias = nullptr;
  DETOPS_ATEN(convolution_backward, input.handle(), like.handle(), weight.handle(), nullptr, 0,
              ones, 2, padding.data(), 2, ones, 2, /*transposed=*/1, output_padding, 2, 1,
              output_mask, 3, &output, &grad_weight, &grad_bias);
  const Tensor unused[] = {Tensor(grad_weight), Tensor(grad_bias)};  // releases the handles
  return Tensor(output);
}

}  // namespace detops
