// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

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

  const TensorFacts* tensors() const { return static_cast<const TensorFacts*>(data); }
  std::string_view text() const { return {static_cast<const char*>(data), size_t(size)}; }
  // One of several numbers, or the only one.
  Number number(int64_t i) const {
    if (kind == Kind::kInts) return static_cast<const int64_t*>(data)[i];
    if (kind == Kind::kFlags) return int64_t(static_cast<const bool*>(data)[i]);
    return static_cast<const double*>(data)[i];
  }
};

// What names stand for in a call: arguments, and the sizes of slots.
struct Scope {
  static constexpr size_t kMostSlots = 32;
  const Argument* arguments;
  int64_t sizes[kMostSlots];
};

class Expression {
 public:
  // Names are looked up once, here.
  struct Names {
    std::function<int(std::string_view)> argument;  // its place, or -1
    std::function<int(std::string_view)> slot;      // of a size
  };

  Expression() = default;
  Expression(std::string_view text, const Names& names);

  Number evaluate(const Scope& scope) const { return evaluate(scope, int(nodes_.size()) - 1); }
  bool holds(const Scope& scope) const { return evaluate(scope).real != 0; }

 private:
  friend class Parser;
  enum class Kind : uint8_t {
    kNumber,
    kSlot,
    kValue,
    kLength,
    kCount,
    kGiven,
    kAnd,
    kOr,
    kNot,
    kIf,
    kBinary
  };
  struct Node {
    Kind kind;
    int a = -1, b = -1, c = -1;  // operands, or a place among arguments or slots
    int64_t number = 0;
    Number (*operation)(const Number&, const Number&) = nullptr;
  };

  Number evaluate(const Scope& scope, int node) const;

  std::vector<Node> nodes_;  // operands before what is made of them
};

}  // namespace detops
