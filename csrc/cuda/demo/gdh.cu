// SPDX-License-Identifier: MIT
#include "../../demo/strided_of.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

template <typename Element>
__global__ void gdh_kernel(math::Strided from, const Element* data, Element* out, int64_t count) {
  DETOPS_FOR_EACH(i, count) { out[i] = data[math::offset_of(from, i)]; }
}

}  // namespace

void gdh_forward(const Tensor& x, Tensor& copy) {
  const math::Strided from = strided_of(x);
  with_element(x, [&](auto element) {
    using Element = decltype(element);
    launch(gdh_kernel<Element>, blocks_for(copy.numel()), from,
           static_cast<const Element*>(x.const_data_ptr()),
           static_cast<Element*>(copy.mutable_data_ptr()), copy.numel());
  });
}

}  // namespace detops::cuda
