// SPDX-License-Identifier: MIT
#include "../../maps/maps.h"

#include "../common/buffer.h"
#include "../common/element_type.h"
#include "../common/memory.h"

#define DETOPS_KERNELS "../maps/corner_pool.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kBeside = 1024;  // lines that a row-by-row pass takes together
constexpr int64_t kElementsPerThread = 1 << 15;

// Calls beside(offset, lines) or, where the elements of a line are neighbours, along(offset, lines)
// for parts of the map.
template <typename Beside, typename Along>
void for_each_part(const CornerLines& lines, int64_t lanes, const Beside& beside,
                   const Along& along) {
  const bool neighbours = lines.inner == 1;
  const int64_t together = neighbours ? lanes : kBeside;
  const int64_t all = neighbours ? lines.outer : lines.inner;
  const int64_t parts = (all + together - 1) / together;
  const int64_t tasks = neighbours ? parts : lines.outer * parts;
  const int64_t elements = lines.length * std::min(together, all);
  const int64_t grain = std::max<int64_t>(1, kElementsPerThread / std::max<int64_t>(1, elements));
  parallel_for(0, tasks, grain, [&](int64_t task, int64_t end) {
    for (; task < end; ++task) {
      const int64_t first = task % parts * together, count = std::min(together, all - first);
      if (neighbours) {
        along(first * lines.length, count);
      } else {
        beside(task / parts * lines.length * lines.inner + lines.first() + first, count);
      }
    }
  });
}

template <typename T>
const T* data(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

}  // namespace

void corner_pool_forward(const Tensor& input, std::string_view mode, Tensor& output) {
  expect_writes(output);
  const Tensor maps = input.contiguous(output.suggest_memory_format());
  const CornerLines lines(output, mode);
  with_element_type(input.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const T* from = data<T>(maps);
    T* to = static_cast<T*>(output.mutable_data_ptr());
    const auto beside = DETOPS_IN_USE(pool_beside<T>);
    const auto along = DETOPS_IN_USE(pool_along<T>);
    for_each_part(
        lines, DETOPS_IN_USE(kLanes<accumulate_t<T>>),
        [&](int64_t at, int64_t count) {
          beside(from + at, lines.length, lines.step(), count, to + at);
        },
        [&](int64_t at, int64_t rows) {
          along(from + at, lines.length, rows, lines.back, to + at);
        });
  });
}

void corner_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& output,
                          std::string_view mode, Tensor& to_input) {
  expect_writes(to_input);
  const MemoryFormat format = to_input.suggest_memory_format();
  const Tensor maps = input.contiguous(format), pooled = output.contiguous(format);
  const Tensor outer = in_layout(as_type(grad, input.scalar_type()), format);
  const CornerLines lines(to_input, mode);
  with_element_type(input.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const T *g = data<T>(outer), *x = data<T>(maps), *y = data<T>(pooled);
    T* to = static_cast<T*>(to_input.mutable_data_ptr());
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
          along(g + at, x + at, y + at, lines.length, rows, lines.back, to + at);
        });
  });
}

}  // namespace detops::cpu
