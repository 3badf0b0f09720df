// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

// The overlap of two masks from numbers of pixels, rounded to float32: over their union, or over
// the first mask. 0 where that is empty.
DETOPS_HD float mask_overlap(int64_t meet, int64_t area1, int64_t area2, bool of_first) {
  const int64_t all = of_first ? area1 : area1 + area2 - meet;
  if (all <= 0) return 0;
  return static_cast<float>(static_cast<double>(meet) / static_cast<double>(all));
}

}  // namespace detops::math
