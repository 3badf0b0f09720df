// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/ATen.h>

// The functions that a detector of the maskrcnn-benchmark family calls by position, where they are
// not ops of this package under the same name: written with those, so that every backend has them.
namespace detops::family {

using at::Tensor;

}  // namespace detops::family
