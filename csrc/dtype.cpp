// SPDX-License-Identifier: MIT
#include "dtype.h"

#include <cstddef>
#include <stdexcept>
#include <string>

namespace detops {

bool is_float(ScalarType type) {
  return type == kFloat || type == kDouble || type == kHalf || type == kBFloat16;
}

bool is_integer(ScalarType type) {
  return type == kLong || type == kInt || type == kByte || type == ScalarType::Short ||
         type == ScalarType::Char;
}

bool is_discrete(ScalarType type) {
  return is_integer(type) || type == kBool || type == ScalarType::UInt16 ||
         type == ScalarType::UInt32 || type == ScalarType::UInt64;
}

uint64_t significant_bits(ScalarType type) {
  if (!is_float(type)) return ~uint64_t(0);
  const int bits = type == kDouble ? 64 : type == kFloat ? 32 : 16;
  uint64_t signs = 0;
  for (int i = bits; i <= 64; i += bits) signs |= uint64_t(1) << (i - 1);
  return ~signs;
}

void throw_no_kernel(ScalarType type) {
  throw std::runtime_error(std::string("no kernel is compiled for ") + dtype_name(type));
}

const char* dtype_name(ScalarType type) {
  // clang-format off
  constexpr const char* kNames[] = {
      "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
      "complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16",
      "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16",
      "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz",
      "uint16", "uint32", "uint64",
      "uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7",
      "int1", "int2", "int3", "int4", "int5", "int6", "int7",
      "float8_e8m0fnu", "float4_e2m1fn_x2"};
  // clang-format on
  const auto code = static_cast<size_t>(type);
  return code < sizeof kNames / sizeof *kNames ? kNames[code] : "an unknown dtype";
}

ScalarType compute_type(ScalarType type) { return type == kDouble ? kDouble : kFloat; }

ScalarType promote_types(ScalarType a, ScalarType b) {
  if (a == b) return a;
  return a == kDouble || b == kDouble ? kDouble : kFloat;  // float16 with bfloat16 gives float32
}

}  // namespace detops
