// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

// The two 16-bit formats as bare bits, for code that does not include PyTorch.
namespace detops {

struct Half {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

// The type of arithmetic on T: at least float32 for floating types.
template <typename T>
using accumulate_t =
    std::conditional_t<std::is_same_v<T, double> || std::is_same_v<T, int32_t>, T, float>;

namespace math {

inline uint32_t float_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

inline float bits_float(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

inline float to_float(float x) { return x; }
inline double to_float(double x) { return x; }
inline float to_float(BFloat16 x) { return bits_float(uint32_t(x.bits) << 16); }

// Exponent and fraction, shifted into position, are too small by a factor of 2^112. Multiplying by
// it is right for subnormals too. Infinity and NaN then need the top exponent.
inline float to_float(Half x) {
  const float scaled = bits_float(uint32_t(x.bits & 0x7fffu) << 13) * 0x1p112f;
  uint32_t u = float_bits(scaled);
  if (scaled >= 65536.0f) u |= 0x7f800000u;
  return bits_float(u | uint32_t(x.bits & 0x8000u) << 16);
}

// Round to nearest, ties to even.
inline void from_float(float x, float& out) { out = x; }
inline void from_float(double x, double& out) { out = x; }
inline void from_float(int32_t x, int32_t& out) { out = x; }
inline void from_float(float x, BFloat16& out) {
  const uint32_t u = float_bits(x);
  out.bits = x != x ? 0x7fc0u : static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
inline void from_float(float x, Half& out) {
  uint32_t u = float_bits(x);
  const uint32_t sign = (u >> 16) & 0x8000u;
  u &= 0x7fffffffu;
  if (u > 0x7f800000u) {
    u = 0x7e00u;
  } else if (u >= 0x477ff000u) {  // 65520 and above round to infinity
    u = 0x7c00u;
  } else if (u < 0x38800000u) {  // subnormal: adding 0.5 lines the last bit up with 2^-24
    u = float_bits(bits_float(u) + 0.5f) - 0x3f000000u;
  } else {
    u = ((u + 0xfffu + ((u >> 13) & 1u)) >> 13) - (112u << 10);
  }
  out.bits = static_cast<uint16_t>(sign | u);
}

}  // namespace math
}  // namespace detops
