// SPDX-License-Identifier: MIT
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "tensor.h"

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
