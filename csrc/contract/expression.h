// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "../tensor.h"

// Arithmetic in contracts: Python's, so that Python reads the same text with its own parser.
namespace detops {

// A whole number, or one that need not be.
struct Number {
  int64_t whole = 0;
  double real = 0;
  bool is_real = false;

  Number(int64_t n) : whole(n), real(double(n)) {}
  Number(double x) : real(x), is_real(true) {}
  std::string text() const;
};

// What a call gives for an argument.
struct Argument {
  enum class Kind : uint8_t { kNone, kTensors, kInts, kFloats, kFlags, kText };
  Kind kind = Kind::kNone;
  bool is_list = false;
  int64_t size = 0;
  const void* data = nullptr;

  bool given() const { return kind != Kind::kNone; }
  // One of several tensors, or the only one.
  const TensorMetadata& tensor(int64_t i = 0) const {
    return static_cast<const Tensor*>(data)[i].metadata();
  }
  std::string_view text() const { return {static_cast<const char*>(data), size_t(size)}; }
  // One of several numbers, or the only one.
  Number number(int64_t i) const {
    if (kind == Kind::kInts) return static_cast<const int64_t*>(data)[i];
    if (kind == Kind::kFlags) return int64_t(static_cast<const uint8_t*>(data)[i]);
    return static_cast<const double*>(data)[i];
  }
  // As messages have it: of a tensor its shape.
  std::string shown() const;
};

// What names stand for in a call: arguments, and the sizes of slots.
struct Scope {
  static constexpr size_t kMostSlots = 32;
  const Argument* arguments;
  int64_t sizes[kMostSlots];
};

using Expression = std::function<Number(const Scope&)>;
using Message = std::function<std::string(const Scope&)>;

// Names are looked up once, here: as the place of an argument, or -1, and as the slot of a size.
using Lookup = std::function<int(std::string_view)>;
Expression parsed(std::string_view text, const Lookup& argument, const Lookup& slot);

}  // namespace detops
