// SPDX-License-Identifier: MIT
#include "../../demo/strided_of.h"
#include "../../math/strided.h"
#include "../../ops.h"

namespace detops::cpu {
namespace {

// Elements are moved as they are, whatever they mean: a type of the same size will do.
template <typename Element>
void copy(const math::Strided& from, const void* data, void* out, int64_t begin, int64_t end) {
  const auto* in = static_cast<const Element*>(data);
  auto* to = static_cast<Element*>(out);
  // Along the innermost dimension without a division per element.
  const int64_t width = from.sizes[from.dims - 1], stride = from.strides[from.dims - 1];
  for (int64_t i = begin; i < end;) {
    const int64_t row_end = std::min(end, (i / width + 1) * width);
    const Element* row = in + math::offset_of(from, i);
    for (; i < row_end; ++i, row += stride) to[i] = *row;
  }
}

}  // namespace

void gdh_forward(const Tensor& x, Tensor& output) {
  const math::Strided from = strided_of(x);
  const void* data = x.const_data_ptr();
  void* out = output.mutable_data_ptr();
  parallel_for(0, output.numel(), 32768, [&](int64_t begin, int64_t end) {
    with_element(x, [&](auto element) { copy<decltype(element)>(from, data, out, begin, end); });
  });
}

}  // namespace detops::cpu
