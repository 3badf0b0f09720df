// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

// Everything in csrc/math compiles for host and device and knows no PyTorch. A value that decides
// a result (a comparison with NaN, an empty range, an overlap with nothing) is decided here only.
// A file that ends in .inl is included in namespace math by a header, and once per instruction set
// by the CPU kernels: a function works on vectors only if it is compiled for them. In it T is a
// number, V that number or a vector of it, I an integer or a vector of it.
#if defined(__CUDACC__)
#define DETOPS_HD __host__ __device__ __forceinline__
#else
// These are always inlined: the CPU kernels call some of them with vectors for numbers.
#define DETOPS_HD inline __attribute__((always_inline))
#endif

// The first is for functions that call their template argument's members, which one side alone has;
// the second is for lambdas that host functions of both backends give to the for_each of theirs.
#if defined(__CUDACC__)
#define DETOPS_ONE_SIDE __device__ __forceinline__
#define DETOPS_EACH __device__
#else
#define DETOPS_ONE_SIDE DETOPS_HD
#define DETOPS_EACH
#endif

namespace detops::math {

// Comparisons written out, so that host and device treat NaN alike: a NaN in `a` yields `a`, a NaN
// in `b` yields `a` as well.
template <typename T>
DETOPS_HD T max(T a, T b) {
  return a < b ? b : a;
}

template <typename T>
DETOPS_HD T min(T a, T b) {
  return b < a ? b : a;
}

// Calls run(std::integral_constant<E, e>()) for that one of the constants which `value` is, or the
// last: on the host.
template <auto first, auto... rest, typename Run>
void with_constant(decltype(first) value, const Run& run) {
  if constexpr (sizeof...(rest) > 0) {
    if (value != first) return with_constant<rest...>(value, run);
  }
  run(std::integral_constant<decltype(first), first>());
}

// Of the width of T, on the host and on a device.
using std::abs, std::atan, std::ceil, std::cos, std::exp, std::expm1, std::floor, std::log;
using std::log1p, std::remquo, std::round, std::sin, std::sqrt, std::tanh;

}  // namespace detops::math
