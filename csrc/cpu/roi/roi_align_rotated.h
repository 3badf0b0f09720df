// SPDX-License-Identifier: MIT
#pragma once

#include "../../tensor.h"

namespace detops::cpu {

// RoIAlign of rotated boxes for op `op`, into an output in the layout of the input and of its
// dtype.
void pool_rotated(const char* op, const Tensor& input, const Tensor& rois, double spatial_scale,
                  int64_t sampling_ratio, Tensor& output);

// The reverse; gives the map its elements, whose layout counts.
void spread_rotated(const char* op, const Tensor& grad, const Tensor& rois, double spatial_scale,
                    int64_t sampling_ratio, Tensor& maps);

}  // namespace detops::cpu
