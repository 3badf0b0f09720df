// SPDX-License-Identifier: MIT
#include "../../host/strided_layout.h"
#include "../../ops.h"

namespace detops::cpu {
namespace {

// Copies elements as bits, so any type of the same size will do. If the elements of a row are far
// apart, a cache line holds elements of several rows. These rows are copied together, in squares as
// wide as a cache line, while the next square is prefetched.
template <typename Element>
void copy(const math::Strided& from, const void* data, void* out, int64_t begin, int64_t end) {
  constexpr int64_t kLine = 64 / sizeof(Element);
  const int64_t height = from.sizes[from.dims - 2], row_stride = from.strides[from.dims - 2];
  const int64_t width = from.sizes[from.dims - 1], column_stride = from.strides[from.dims - 1];
  for (int64_t i = begin, count; i < end; i += count) {
    const Element* in = static_cast<const Element*>(data) + math::element_offset(from, i);
    Element* to = static_cast<Element*>(out) + i;
    const int64_t rows = std::min({kLine, height - i / width % height, (end - i) / width});
    const bool tiled =
        i % width == 0 && rows > 1 && row_stride < column_stride && column_stride >= kLine;
    count = tiled ? rows * width : std::min(end - i, width - i % width);
    if (!tiled) {
      for (int64_t x = 0; x < count; ++x) to[x] = in[x * column_stride];
      continue;
    }
    for (int64_t left = 0; left < width; left += kLine) {
      const int64_t right = std::min(width, left + kLine);
      for (int64_t x = right; x < std::min(width, right + kLine); ++x) {
        for (int64_t y : {int64_t(0), rows - 1})
          __builtin_prefetch(&in[x * column_stride + y * row_stride]);
      }
      for (int64_t y = 0; y < rows; ++y) {
        __builtin_prefetch(&to[y * width + right], /*write=*/1);
        for (int64_t x = left; x < right; ++x)
          to[y * width + x] = in[x * column_stride + y * row_stride];
      }
    }
  }
}

}  // namespace

void gdh_forward(const Tensor& x, Tensor& output) {
  const math::Strided from = strided_layout(x);
  const void* data = x.const_data_ptr();
  void* out = output.mutable_data_ptr();
  parallel_for(output.numel(), 32768, [&](int64_t begin, int64_t end) {
    with_element(x, [&](auto element) { copy<decltype(element)>(from, data, out, begin, end); });
  });
}

}  // namespace detops::cpu
