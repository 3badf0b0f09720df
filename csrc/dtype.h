// SPDX-License-Identifier: MIT
#pragma once

#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>

// Ops accept a fixed list of dtypes. All others, including future ones, are rejected.
namespace detops {

using torch::headeronly::ScalarType;

bool is_float(ScalarType type);     // float32, float64, float16, bfloat16
bool is_integer(ScalarType type);   // for arithmetic: int64, int32, int16, int8, uint8
bool is_discrete(ScalarType type);  // for comparison: any integer, and bool

constexpr ScalarType kBool = ScalarType::Bool, kByte = ScalarType::Byte, kInt = ScalarType::Int,
                     kLong = ScalarType::Long, kHalf = ScalarType::Half,
                     kBFloat16 = ScalarType::BFloat16, kFloat = ScalarType::Float,
                     kDouble = ScalarType::Double;

// Mask for eight bytes of elements that clears the signs of floating-point ones, so -0 equals 0.
uint64_t significant_bits(ScalarType type);

// Raises the error for a dtype without a compiled kernel.
[[noreturn]] void throw_no_kernel(ScalarType type);

// Returns the name in Python, such as "float32".
const char* dtype_name(ScalarType type);

// Returns the dtype that coordinates are computed in: float32 at least.
ScalarType compute_type(ScalarType type);
// Promotes two floating dtypes.
ScalarType promote_types(ScalarType a, ScalarType b);

}  // namespace detops

// Runs a lambda with scalar_t as the element type of a dtype. A dtype without a kernel raises an
// error.

#define DETOPS_DTYPE_CASE(dtype, T, ...) \
  case ::detops::ScalarType::dtype: {    \
    using scalar_t = T;                  \
    return __VA_ARGS__();                \
  }
#define DETOPS_DTYPE_SWITCH(dtype, cases)                                      \
  [&] {                                                                        \
    const auto switched = (dtype);                                             \
    switch (switched) { cases default : ::detops::throw_no_kernel(switched); } \
  }()

// float32 and float64, the types that coordinates are computed in.
#define DETOPS_WIDE_SWITCH(dtype, ...)                                    \
  DETOPS_DTYPE_SWITCH(dtype, DETOPS_DTYPE_CASE(Float, float, __VA_ARGS__) \
                                 DETOPS_DTYPE_CASE(Double, double, __VA_ARGS__))

// float32, float64, float16 and bfloat16.
#define DETOPS_FLOAT_SWITCH(dtype, ...)                                                           \
  DETOPS_DTYPE_SWITCH(                                                                            \
      dtype,                                                                                      \
      DETOPS_DTYPE_CASE(Float, float, __VA_ARGS__) DETOPS_DTYPE_CASE(Double, double, __VA_ARGS__) \
          DETOPS_DTYPE_CASE(Half, ::torch::headeronly::Half, __VA_ARGS__)                         \
              DETOPS_DTYPE_CASE(BFloat16, ::torch::headeronly::BFloat16, __VA_ARGS__))
