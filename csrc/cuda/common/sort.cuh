// SPDX-License-Identifier: MIT
#pragma once

#include "../../tensor.h"

// Stable sorts, implemented with cub.
namespace detops::cuda {

// Returns the values, int32[N], in ascending order of their keys, int32[N] or int64[N]. Keys are
// compared as unsigned integers.
Tensor sort_by_key(const Tensor& keys, const Tensor& values);

// Returns pairs, int32[N, 2], sorted by their second number, which is in [0, max_second].
// Overwrites `pairs`.
Tensor sort_by_second(const Tensor& pairs, int64_t max_second);

// Returns the indices, int32[N], of scores of any floating dtype in selection order: NaN of either
// sign first, then descending. Ties keep the input order. -0 and +0 are a tie.
Tensor selection_order(const Tensor& scores);

}  // namespace detops::cuda
