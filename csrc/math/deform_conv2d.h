// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

#include "deform_conv2d.inl"

}  // namespace detops::math
