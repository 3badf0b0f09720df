// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

DETOPS_HD float exponential(float x) { return ::expf(x); }
DETOPS_HD double exponential(double x) { return ::exp(x); }
DETOPS_HD float exponential_minus_one(float x) { return ::expm1f(x); }
DETOPS_HD double exponential_minus_one(double x) { return ::expm1(x); }
DETOPS_HD float tangent(float x) { return ::tanhf(x); }
DETOPS_HD double tangent(double x) { return ::tanh(x); }

#include "gates.inl"

}  // namespace detops::math
