// SPDX-License-Identifier: MIT
#pragma once

#include "../tensor.h"

// "Oriented Response Networks" (Zhou et al., 2017), section 3.1 (active rotating filters): the
// weights of a filter of several orientations, each in another place for each rotation.
namespace detops {

struct TurnedFilters {
  int64_t outputs, inputs;     // planes before they are turned
  int64_t entries, rotations;  // weights of a filter: of all orientations, rows and columns

  // `indices` [orientations, H, W, rotations] tells where an entry goes, counted from 1.
  TurnedFilters(int64_t outputs, int64_t inputs, const Tensor& indices)
      : outputs(outputs),
        inputs(inputs),
        entries(indices.size(0) * indices.size(1) * indices.size(2)),
        rotations(indices.size(3)) {}

  // constexpr: for devices too.
  constexpr int64_t filters() const { return outputs * inputs; }

  // Where filter i of [outputs, inputs], turned, begins in [outputs, rotations, inputs, entries].
  constexpr int64_t turned(int64_t i, int64_t rotation) const {
    return ((i / inputs * rotations + rotation) * inputs + i % inputs) * entries;
  }
};

}  // namespace detops
