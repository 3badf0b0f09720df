// SPDX-License-Identifier: MIT
#include "../../host/strided_layout.h"
#include "../common/transpose.cuh"

namespace detops::cuda {
namespace {

constexpr int kMinTiled = 16;  // elements per row and column from which tiles are faster

template <typename Element>
void copy(const math::Strided& from, const Element* data, Element* out, int64_t count) {
  const int64_t height = from.sizes[from.dims - 2], row_stride = from.strides[from.dims - 2];
  const int64_t width = from.sizes[from.dims - 1], column_stride = from.strides[from.dims - 1];
  if (row_stride == 1 && column_stride != 1 && height >= kMinTiled && width >= kMinTiled) {
    const Matrices matrices{count / (height * width), width, height, column_stride};
    const auto begin = [=] __device__(int64_t k) {
      return math::element_offset(from, k * height * width);
    };
    transpose_matrices(matrices, begin, data, out);
  } else {
    for_each(count, [=] __device__(int64_t i) { out[i] = data[math::element_offset(from, i)]; });
  }
}

}  // namespace

void gdh_forward(const Tensor& x, Tensor& output) {
  const math::Strided from = strided_layout(x);
  with_element(x, [&](auto element) {
    using Element = decltype(element);
    copy(from, static_cast<const Element*>(x.const_data_ptr()),
         static_cast<Element*>(output.mutable_data_ptr()), output.numel());
  });
}

}  // namespace detops::cuda
