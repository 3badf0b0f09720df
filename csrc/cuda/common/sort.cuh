// SPDX-License-Identifier: MIT
#pragma once

#include "../../tensor.h"

// By cub, stable: what is equal stays in order.
namespace detops::cuda {

// The values, int32[N], in ascending order of their keys: int32[N] or int64[N], taken for unsigned.
Tensor sort_by_key(const Tensor& keys, const Tensor& values);

// Pairs of int32, [N, 2], ordered by the second number, which is of [0, last]. What `pairs` holds
// is lost.
Tensor sort_by_second(const Tensor& pairs, int64_t last);

// int32[N]: where the scores, of any floating type, are in the order of selection: NaN of either
// sign first, then the highest. Ties, as of both zeros, are in input order.
Tensor selection_order(const Tensor& scores);

}  // namespace detops::cuda
