// SPDX-License-Identifier: MIT
#pragma once

#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

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

// Runs a lambda's body with scalar_t the type of a dtype's elements. A dtype without a kernel is an
// error, not a guess.

#define DETOPS_DTYPE_CASE(dtype, T, ...) \
  case ::detops::ScalarType::dtype: {    \
    using scalar_t = T;                  \
    return __VA_ARGS__();                \
  }
#define DETOPS_DTYPE_SWITCH(dtype, cases)                                \
  [&] {                                                                  \
    const auto switched = (dtype);                                       \
    switch (switched) { cases default : ::detops::no_kernel(switched); } \
  }()

// float32 and float64, in which coordinates are computed.
#define DETOPS_WIDE_SWITCH(dtype, ...)                                    \
  DETOPS_DTYPE_SWITCH(dtype, DETOPS_DTYPE_CASE(Float, float, __VA_ARGS__) \
                                 DETOPS_DTYPE_CASE(Double, double, __VA_ARGS__))

// Those and the two of 16 bits.
#define DETOPS_FLOAT_SWITCH(dtype, ...)                                                           \
  DETOPS_DTYPE_SWITCH(                                                                            \
      dtype,                                                                                      \
      DETOPS_DTYPE_CASE(Float, float, __VA_ARGS__) DETOPS_DTYPE_CASE(Double, double, __VA_ARGS__) \
          DETOPS_DTYPE_CASE(Half, ::torch::headeronly::Half, __VA_ARGS__)                         \
              DETOPS_DTYPE_CASE(BFloat16, ::torch::headeronly::BFloat16, __VA_ARGS__))
