// SPDX-License-Identifier: MIT
#include "../../boxes/box_lists.h"
#include "../../math/box_coder.h"
#include "../common/launch.cuh"

// One thread per anchor in the backward pass: its deltas add into its gradient without atomics.
namespace detops::cuda {

#include "../../boxes/box_coder.inl"

}  // namespace detops::cuda
