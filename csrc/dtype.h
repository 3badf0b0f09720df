// SPDX-License-Identifier: MIT
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>

// The dtypes that ops take are lists: whatever else PyTorch has, or will have, is refused.
namespace detops {

using torch::headeronly::ScalarType;

bool is_float(ScalarType type);     // float32, float64, float16, bfloat16
bool is_integer(ScalarType type);   // to compute with: int64, int32, int16, int8, uint8
bool is_discrete(ScalarType type);  // to compare: any integer, and bool

constexpr ScalarType kBool = ScalarType::Bool, kByte = ScalarType::Byte, kInt = ScalarType::Int,
                     kLong = ScalarType::Long, kHalf = ScalarType::Half,
                     kBFloat16 = ScalarType::BFloat16, kFloat = ScalarType::Float,
                     kDouble = ScalarType::Double;

// Eight bytes' worth of elements without the signs of floating ones: minus zero is zero.
uint64_t significant_bits(ScalarType type);

// Raises the error of a dtype that no kernel was compiled for.
[[noreturn]] void no_kernel(ScalarType type);

// "float32", as Python writes it.
const char* dtype_name(ScalarType type);

// The dtype that coordinates are computed in: float32 at least.
ScalarType compute_type(ScalarType type);
// Of two floating ones.
ScalarType promoted_type(ScalarType a, ScalarType b);

}  // namespace detops
