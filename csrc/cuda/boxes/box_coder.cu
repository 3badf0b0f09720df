// SPDX-License-Identifier: MIT
#include "../../host/box_lists.h"
#include "../../math/box_coder.h"
#include "../common/launch.cuh"

// In the backward pass, one thread per anchor sums the gradients of its deltas without atomics.
namespace detops::cuda {

#include "../../host/box_coder.inl"

}  // namespace detops::cuda
