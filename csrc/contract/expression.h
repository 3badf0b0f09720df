// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

// Arithmetic in contracts: Python's, so that Python reads the same text with its own parser.
namespace detops {

// A whole number, or one that need not be.
struct Number {
  int64_t whole = 0;
  double real = 0;
  bool is_real = false;

  Number() = default;
  Number(int64_t n) : whole(n), real(double(n)) {}
  Number(double x) : real(x), is_real(true) {}
  bool is_true() const { return is_real ? real != 0 : whole != 0; }
  std::string text() const;
};

// Who knows what names mean: the size that a name stands for, and an argument's value, length, size
// along a dimension, number of elements, and whether there is one.
class Scope {
 public:
  virtual Number size_of(int slot) const = 0;
  virtual Number value_of(int argument) const = 0;
  virtual Number element_of(int argument, int64_t i) const = 0;
  virtual int64_t length_of(int argument) const = 0;
  virtual int64_t extent_of(int argument, int64_t dimension) const = 0;
  virtual int64_t count_of(int argument) const = 0;
  virtual bool given(int argument) const = 0;

 protected:
  ~Scope() = default;
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
  const std::string& text() const { return text_; }
  // The slot that this is, or -1 for anything more than a name.
  int slot() const;

 private:
  friend class Parser;
  enum class Kind : uint8_t {
    kNumber,
    kSlot,
    kValue,
    kElement,
    kLength,
    kExtent,
    kCount,
    kGiven,
    kAdd,
    kSubtract,
    kMultiply,
    kDivide,
    kModulo,
    kEqual,
    kUnequal,
    kLess,
    kLessEqual,
    kGreater,
    kGreaterEqual,
    kAnd,
    kOr,
    kNot,
    kIf,
  };
  struct Node {
    Kind kind;
    int a = -1, b = -1, c = -1;  // operands, or a place among arguments or slots
    Number number{};
  };

  Number evaluate(const Scope& scope, int node) const;

  std::vector<Node> nodes_;  // operands before what is made of them
  std::string text_;
};

}  // namespace detops
