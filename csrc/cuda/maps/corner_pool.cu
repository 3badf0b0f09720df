// SPDX-License-Identifier: MIT
#include "../../host/map_geometry.h"

#include "../common/launch.cuh"

// One thread per line. Adjacent threads handle adjacent lines.
namespace detops::cuda {
namespace {

__device__ int64_t line_start(const CornerLines& lines, int64_t line) {
  return line / lines.inner * lines.length * lines.inner + lines.first() + line % lines.inner;
}

}  // namespace

void corner_pool_forward(const Tensor& input, std::string_view mode, Tensor& output) {
  const Tensor maps = input.contiguous(output.suggest_memory_format());
  const CornerLines lines(output, mode);
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const scalar_t* from = elements(maps);
    scalar_t* to = elements(output);
    for_each(lines.outer * lines.inner, [=] __device__(int64_t line) {
      int64_t at = line_start(lines, line);
      A best = -std::numeric_limits<A>::infinity();
      for (int64_t i = 0; i < lines.length; ++i, at += lines.step()) {
        const A x = static_cast<A>(from[at]);
        if (x >= best || x != x) best = x;
        to[at] = static_cast<scalar_t>(best);
      }
    });
  });
}

void corner_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& output,
                          std::string_view mode, Tensor& to_input) {
  const MemoryFormat format = to_input.suggest_memory_format();
  const Tensor maps = input.contiguous(format), pooled = output.contiguous(format);
  const Tensor upstream = grad.to(input.scalar_type()).contiguous(format);
  const CornerLines lines(to_input, mode);
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const scalar_t *from = elements(maps), *best = elements(pooled), *g = elements(upstream);
    scalar_t* to = elements(to_input);
    for_each(lines.outer * lines.inner, [=] __device__(int64_t line) {
      int64_t at = line_start(lines, line) + (lines.length - 1) * lines.step();
      A sum = 0;
      for (int64_t i = 0; i < lines.length; ++i, at -= lines.step()) {
        const A x = static_cast<A>(from[at]);
        const bool is_maximum = x == static_cast<A>(best[at]) || x != x;
        sum += static_cast<A>(g[at]);
        to[at] = static_cast<scalar_t>(is_maximum ? sum : A(0));
        if (is_maximum) sum = 0;
      }
    });
  });
}

}  // namespace detops::cuda
