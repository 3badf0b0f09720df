// SPDX-License-Identifier: MIT
#include "../../host/map_geometry.h"
#include "../common/host.h"

#define DETOPS_KERNELS "../maps/corner_pool.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kAdjacentLines = 1024;  // lines that a row-by-row pass processes together
constexpr int64_t kElementsPerThread = 1 << 15;

// Splits the map into parts. Calls contiguous(offset, lines) for each part if the elements of a
// line are contiguous, otherwise adjacent(offset, lines) for adjacent lines.
template <typename Adjacent, typename Contiguous>
void for_each_part(const CornerLines& lines, int64_t lanes, const Adjacent& adjacent,
                   const Contiguous& contiguous) {
  const bool is_contiguous = lines.inner == 1;
  const int64_t lines_per_part = is_contiguous ? lanes : kAdjacentLines;
  const int64_t line_count = is_contiguous ? lines.outer : lines.inner;
  const int64_t parts = divide_up(line_count, lines_per_part);
  const int64_t tasks = is_contiguous ? parts : lines.outer * parts;
  const int64_t grain =
      grain_for(kElementsPerThread, lines.length * std::min(lines_per_part, line_count));
  parallel_each(tasks, grain, [&](int64_t task) {
    const int64_t first = task % parts * lines_per_part,
                  count = std::min(lines_per_part, line_count - first);
    if (is_contiguous) {
      contiguous(first * lines.length, count);
    } else {
      adjacent(task / parts * lines.length * lines.inner + lines.first() + first, count);
    }
  });
}

}  // namespace

void corner_pool_forward(const Tensor& input, std::string_view mode, Tensor& output) {
  const Tensor maps = input.contiguous(output.suggest_memory_format());
  const CornerLines lines(output, mode);
  with_element_type(input.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const T* from = elements<T>(maps);
    T* to = mutable_elements<T>(output);
    const auto adjacent = DETOPS_IN_USE(pool_adjacent<T>);
    const auto contiguous = DETOPS_IN_USE(pool_contiguous<T>);
    for_each_part(
        lines, DETOPS_IN_USE(kLanes<accumulate_t<T>>),
        [&](int64_t at, int64_t count) {
          adjacent(from + at, lines.length, lines.step(), count, to + at);
        },
        [&](int64_t at, int64_t rows) {
          contiguous(from + at, lines.length, rows, lines.reverse, to + at);
        });
  });
}

void corner_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& output,
                          std::string_view mode, Tensor& to_input) {
  const MemoryFormat format = to_input.suggest_memory_format();
  const Tensor maps = input.contiguous(format), pooled = output.contiguous(format);
  const Tensor upstream = to_memory_format(grad.to(input.scalar_type()), format);
  const CornerLines lines(to_input, mode);
  with_element_type(input.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const T *g = elements<T>(upstream), *x = elements<T>(maps), *y = elements<T>(pooled);
    T* to = mutable_elements<T>(to_input);
    const auto adjacent = DETOPS_IN_USE(pool_adjacent_backward<T>);
    const auto contiguous = DETOPS_IN_USE(pool_contiguous_backward<T>);
    const int64_t lanes = DETOPS_IN_USE(kLanes<A>);
    for_each_part(
        lines, lanes,
        [&](int64_t at, int64_t count) {
          Buffer<A> sums(count + lanes);
          adjacent(g + at, x + at, y + at, lines.length, lines.step(), count, sums.data(), to + at);
        },
        [&](int64_t at, int64_t rows) {
          contiguous(g + at, x + at, y + at, lines.length, rows, lines.reverse, to + at);
        });
  });
}

}  // namespace detops::cpu
