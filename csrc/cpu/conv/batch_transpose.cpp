// SPDX-License-Identifier: MIT
#include <algorithm>

#include "../../ops.h"
#include "../common/element_type.h"
#include "../common/memory.h"

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
    const T* matrices = static_cast<const T*>(from.const_data_ptr());
    T* transposed = static_cast<T*>(output.mutable_data_ptr());
    const auto kernel = DETOPS_IN_USE(transpose_matrix<T>);
    const int64_t grain = std::max<int64_t>(1, kElementsPerThread / size);
    parallel_for(0, from.size(0), grain, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        kernel(matrices + n * size, height, width, transposed + n * size);
      }
    });
  });
}

}  // namespace detops::cpu
