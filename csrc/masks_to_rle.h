// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace detops::composite {

// COCO's compressed run lengths as text on the host, one mask after another, and where each ends.
std::tuple<at::Tensor, at::Tensor> masks_to_rle(
    const at::Tensor& masks);  // [N, H, W] -> uint8[*], int64[N]

}  // namespace detops::composite
