// SPDX-License-Identifier: MIT
#include "../../maps/maps.h"

#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

__device__ int64_t first_of(const CornerLines& lines, int64_t line) {
  return line / lines.inner * lines.length * lines.inner + lines.first() + line % lines.inner;
}

// A thread has a line; threads beside each other have lines beside each other.
template <typename T, typename A>
__global__ void corner_pool_kernel(CornerLines lines, const T* input, T* output) {
  DETOPS_FOR_EACH(line, lines.outer * lines.inner) {
    int64_t at = first_of(lines, line);
    A best = -std::numeric_limits<A>::infinity();
    for (int64_t i = 0; i < lines.length; ++i, at += lines.step()) {
      const A x = static_cast<A>(input[at]);
      if (x >= best || x != x) best = x;
      output[at] = static_cast<T>(best);
    }
  }
}

template <typename T, typename A>
__global__ void corner_pool_backward_kernel(CornerLines lines, const T* grad, const T* input,
                                            const T* pooled, T* to_input) {
  DETOPS_FOR_EACH(line, lines.outer * lines.inner) {
    int64_t at = first_of(lines, line) + (lines.length - 1) * lines.step();
    A sum = 0;
    for (int64_t i = 0; i < lines.length; ++i, at -= lines.step()) {
      const A x = static_cast<A>(input[at]);
      const bool counted = x == static_cast<A>(pooled[at]) || x != x;
      sum += static_cast<A>(grad[at]);
      to_input[at] = static_cast<T>(counted ? sum : A(0));
      if (counted) sum = 0;
    }
  }
}

}  // namespace

void corner_pool_forward(const Tensor& input, std::string_view mode, Tensor& output) {
  const Tensor maps = input.contiguous(output.suggest_memory_format());
  const CornerLines lines(output, mode);
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    launch(corner_pool_kernel<scalar_t, accumulate_t<scalar_t>>,
           blocks_for(lines.outer * lines.inner), lines, maps, output);
  });
}

void corner_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& output,
                          std::string_view mode, Tensor& to_input) {
  const MemoryFormat format = to_input.suggest_memory_format();
  const Tensor maps = input.contiguous(format), pooled = output.contiguous(format);
  const Tensor outer = as_type(grad, input.scalar_type()).contiguous(format);
  const CornerLines lines(to_input, mode);
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    launch(corner_pool_backward_kernel<scalar_t, accumulate_t<scalar_t>>,
           blocks_for(lines.outer * lines.inner), lines, outer, maps, pooled, to_input);
  });
}

}  // namespace detops::cuda
