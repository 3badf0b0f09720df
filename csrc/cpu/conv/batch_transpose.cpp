// SPDX-License-Identifier: MIT
#include "../common/host.h"

#define DETOPS_KERNELS "../conv/batch_transpose.inl"
#include "../simd/variants.h"

namespace detops::cpu {

constexpr int64_t kElementsPerThread = 1 << 15;

void batch_transpose(const Tensor& input, Tensor& output) {
  expect_writes(output);
  const Tensor from = input.contiguous();
  const int64_t height = from.size(1), width = from.size(2), size = height * width;
  with_element_type(from.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const T* matrices = elements<T>(from);
    T* transposed = mutable_elements<T>(output);
    const auto kernel = DETOPS_IN_USE(transpose_matrix<T>);
    parallel_each(from.size(0), grain_for(kElementsPerThread, size), [&](int64_t n) {
      kernel(matrices + n * size, height, width, transposed + n * size);
    });
  });
}

}  // namespace detops::cpu
