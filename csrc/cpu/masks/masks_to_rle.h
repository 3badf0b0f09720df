// SPDX-License-Identifier: MIT
#pragma once

#include "../../tensor.h"

#include <tuple>

namespace detops {

// COCO's compressed run lengths as text on the host, one mask after another, and where each ends.
std::tuple<Tensor, Tensor> masks_to_rle(const Tensor& masks);

}  // namespace detops
