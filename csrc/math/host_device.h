// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

// Everything in csrc/math compiles for host and device, without PyTorch. Edge cases that decide a
// result (a comparison with NaN, an empty range, an empty intersection) are settled only here. Each
// .inl file is included by a header, in namespace math, and by the CPU kernels, once per
// instruction set: functions work on vectors only if they are compiled for that instruction set. In
// these files T is a scalar type, V is T or a vector of T, and I is an integer type or a vector of
// one.
#if defined(__CUDACC__)
#define DETOPS_HD __host__ __device__ __forceinline__
#else
// Always inlined: the CPU kernels call some of these functions with vectors instead of scalars.
#define DETOPS_HD inline __attribute__((always_inline))
#endif

// DETOPS_ONE_SIDE marks functions that call members of their template argument, which exist only on
// the host or only on the device. DETOPS_EACH marks lambdas in host functions of both backends,
// which pass them to their backend's for_each.
#if defined(__CUDACC__)
#define DETOPS_ONE_SIDE __device__ __forceinline__
#define DETOPS_EACH __device__
#else
#define DETOPS_ONE_SIDE DETOPS_HD
#define DETOPS_EACH
#endif

namespace detops::math {

// The comparisons are written out so that host and device treat NaN alike: a NaN in either argument
// yields `a`.
template <typename T>
DETOPS_HD T max(T a, T b) {
  return a < b ? b : a;
}

template <typename T>
DETOPS_HD T min(T a, T b) {
  return b < a ? b : a;
}

// Calls run(std::integral_constant<E, e>()) with the constant e that equals `value`, or with the
// last one. Host only.
template <auto first, auto... rest, typename Run>
void with_constant(decltype(first) value, const Run& run) {
  if constexpr (sizeof...(rest) > 0) {
    if (value != first) return with_constant<rest...>(value, run);
  }
  run(std::integral_constant<decltype(first), first>());
}

// Overloads for the width of T, on the host and on the device.
using std::abs, std::atan, std::ceil, std::cos, std::exp, std::expm1, std::floor, std::log;
using std::log1p, std::remquo, std::round, std::sin, std::sqrt, std::tanh;

}  // namespace detops::math
