// SPDX-License-Identifier: MIT
#pragma once

#include "../tensor.h"

namespace detops {

// The levels lie within the positions [0, count) and cover as many. For tensors on the CPU only:
// values that live on a device are made safe in its kernels.
void check_levels(const char* op, const Tensor& spatial_shapes, const Tensor& level_start_index,
                  int64_t count);

}  // namespace detops
