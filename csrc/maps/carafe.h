// SPDX-License-Identifier: MIT
#pragma once

#include "../tensor.h"

namespace detops {

// The sizes that a reassembly of features works with, of arguments that have been checked.
struct Reassembly : MapSizes {  // of the features
  int64_t kernel, groups, scale;

  Reassembly(const Tensor& features, int64_t kernel_size, int64_t group_size, int64_t scale_factor)
      : MapSizes(features), kernel(kernel_size), groups(group_size), scale(scale_factor) {}

  // constexpr: for devices too.
  constexpr int64_t taps() const { return kernel * kernel; }
  constexpr int64_t radius() const { return kernel / 2; }
  constexpr int64_t group_channels() const { return channels / groups; }
  constexpr int64_t size() const { return height * width; }
  constexpr int64_t output_width() const { return scale * width; }
  constexpr int64_t output_size() const { return scale * scale * size(); }
};

}  // namespace detops
