// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

#include "gates.inl"

}  // namespace detops::math
