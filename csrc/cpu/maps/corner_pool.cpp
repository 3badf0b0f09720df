// SPDX-License-Identifier: MIT
#include "../../maps/maps.h"
#include "../common/host.h"

#define DETOPS_KERNELS "../maps/corner_pool.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kBeside = 1024;  // lines that a row-by-row pass processes together
constexpr int64_t kElementsPerThread = 1 << 15;

// Splits the map into parts. Calls along(offset, lines) for each part if the elements of a line are
// adjacent, otherwise beside(offset, lines).
template <typename Beside, typename Along>
void for_each_part(const CornerLines& lines, int64_t lanes, const Beside& beside,
                   const Along& along) {
  const bool neighbours = lines.inner == 1;
  const int64_t together = neighbours ? lanes : kBeside;
  const int64_t all = neighbours ? lines.outer : lines.inner;
  const int64_t parts = divide_up(all, together);
  const int64_t tasks = neighbours ? parts : lines.outer * parts;
  const int64_t grain = grain_for(kElementsPerThread, lines.length * std::min(together, all));
  parallel_each(tasks, grain, [&](int64_t task) {
    const int64_t first = task % parts * together, count = std::min(together, all - first);
    if (neighbours) {
      along(first * lines.length, count);
    } else {
      beside(task / parts * lines.length * lines.inner + lines.first() + first, count);
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
    const auto beside = DETOPS_IN_USE(pool_beside<T>);
    const auto along = DETOPS_IN_USE(pool_along<T>);
    for_each_part(
        lines, DETOPS_IN_USE(kLanes<accumulate_t<T>>),
        [&](int64_t at, int64_t count) {
          beside(from + at, lines.length, lines.step(), count, to + at);
        },
        [&](int64_t at, int64_t rows) {
          along(from + at, lines.length, rows, lines.reverse, to + at);
        });
  });
}

void corner_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& output,
                          std::string_view mode, Tensor& to_input) {
  const MemoryFormat format = to_input.suggest_memory_format();
  const Tensor maps = input.contiguous(format), pooled = output.contiguous(format);
  const Tensor outer = to_memory_format(grad.to(input.scalar_type()), format);
  const CornerLines lines(to_input, mode);
  with_element_type(input.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const T *g = elements<T>(outer), *x = elements<T>(maps), *y = elements<T>(pooled);
    T* to = mutable_elements<T>(to_input);
    const auto beside = DETOPS_IN_USE(spread_beside<T>);
    const auto along = DETOPS_IN_USE(spread_along<T>);
    const int64_t lanes = DETOPS_IN_USE(kLanes<A>);
    for_each_part(
        lines, lanes,
        [&](int64_t at, int64_t count) {
          Buffer<A> sums(count + lanes);
          beside(g + at, x + at, y + at, lines.length, lines.step(), count, sums.data(), to + at);
        },
        [&](int64_t at, int64_t rows) {
          along(g + at, x + at, y + at, lines.length, rows, lines.reverse, to + at);
        });
  });
}

}  // namespace detops::cpu
