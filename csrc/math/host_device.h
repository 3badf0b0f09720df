// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

// Everything in csrc/math compiles for host and device and knows no PyTorch. A value that decides
// a result (a comparison with NaN, an empty range, an overlap with nothing) is decided here only.
#if defined(__CUDACC__)
#define DETOPS_HD __host__ __device__ __forceinline__
#else
// Always inlined: the CPU kernels call some of this with vectors for numbers.
#define DETOPS_HD inline __attribute__((always_inline))
#endif

// For what calls members of its template argument, which are of one side alone.
#if defined(__CUDACC__)
#define DETOPS_ONE_SIDE __device__ __forceinline__
#else
#define DETOPS_ONE_SIDE DETOPS_HD
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

// exp and related functions of the width of T: std:: picks the float overload on the host, and a
// device has both.
DETOPS_HD float exp(float x) { return ::expf(x); }
DETOPS_HD double exp(double x) { return ::exp(x); }
DETOPS_HD float expm1(float x) { return ::expm1f(x); }
DETOPS_HD double expm1(double x) { return ::expm1(x); }
DETOPS_HD float tanh(float x) { return ::tanhf(x); }
DETOPS_HD double tanh(double x) { return ::tanh(x); }
DETOPS_HD float log(float x) { return ::logf(x); }
DETOPS_HD double log(double x) { return ::log(x); }
DETOPS_HD float log1p(float x) { return ::log1pf(x); }
DETOPS_HD double log1p(double x) { return ::log1p(x); }
DETOPS_HD float sqrt(float x) { return ::sqrtf(x); }
DETOPS_HD double sqrt(double x) { return ::sqrt(x); }
DETOPS_HD float atan(float x) { return ::atanf(x); }
DETOPS_HD double atan(double x) { return ::atan(x); }
DETOPS_HD float floor(float x) { return ::floorf(x); }
DETOPS_HD double floor(double x) { return ::floor(x); }
DETOPS_HD float ceil(float x) { return ::ceilf(x); }
DETOPS_HD double ceil(double x) { return ::ceil(x); }
DETOPS_HD float round(float x) { return ::roundf(x); }  // halves away from zero
DETOPS_HD double round(double x) { return ::round(x); }
DETOPS_HD float sin(float x) { return ::sinf(x); }
DETOPS_HD double sin(double x) { return ::sin(x); }
DETOPS_HD float cos(float x) { return ::cosf(x); }
DETOPS_HD double cos(double x) { return ::cos(x); }
DETOPS_HD float remquo(float x, float y, int* q) { return ::remquof(x, y, q); }
DETOPS_HD double remquo(double x, double y, int* q) { return ::remquo(x, y, q); }
DETOPS_HD float abs(float x) { return ::fabsf(x); }
DETOPS_HD double abs(double x) { return ::fabs(x); }

}  // namespace detops::math
