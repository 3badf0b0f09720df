// SPDX-License-Identifier: MIT
#include "expression.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <stdexcept>

namespace detops {

std::string Number::text() const {
  if (!is_real) return std::to_string(whole);
  char digits[32];
  std::snprintf(digits, sizeof digits, "%g", real);
  return digits;
}

// By precedence climbing; the weakest binding first.
class Parser {
 public:
  Parser(std::string_view text, const Expression::Names& names, Expression& to)
      : text_(text), names_(names), to_(to) {}

  void parse() {
    choice();
    skip();
    if (at_ != text_.size()) fail("the end");
  }

 private:
  using Kind = Expression::Kind;

  [[noreturn]] void fail(const char* expected) const {
    throw std::logic_error("a contract: expected " + std::string(expected) + " at character " +
                           std::to_string(at_) + " of: " + std::string(text_));
  }

  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  bool take(std::string_view token) {
    skip();
    if (text_.substr(at_, token.size()) != token) return false;
    const size_t end = at_ + token.size();
    const bool word = std::isalpha(static_cast<unsigned char>(token[0]));
    if (word && end < text_.size() && is_name(text_[end])) return false;
    at_ = end;
    return true;
  }

  void expect(const char* token) {
    if (!take(token)) fail(token);
  }

  static bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

  int add(Kind kind, int a = -1, int b = -1, int c = -1) {
    to_.nodes_.push_back({kind, a, b, c, {}});
    return int(to_.nodes_.size()) - 1;
  }

  int choice() {
    const int yes = operation();
    if (!take("if")) return yes;
    const int condition = operation();
    expect("else");
    return add(Kind::kIf, condition, yes, choice());
  }

  // From the weakest on; `not` stands between `and` and the comparisons.
  struct Operator {
    const char* token;
    Kind kind;
    int strength;
  };
  static constexpr int kNegation = 2, kComparison = 3, kAtom = 6;
  static constexpr Operator kOperators[] = {
      {"or", Kind::kOr, 0},      {"and", Kind::kAnd, 1},      {"==", Kind::kEqual, 3},
      {"!=", Kind::kUnequal, 3}, {"<=", Kind::kLessEqual, 3}, {">=", Kind::kGreaterEqual, 3},
      {"<", Kind::kLess, 3},     {">", Kind::kGreater, 3},    {"+", Kind::kAdd, 4},
      {"-", Kind::kSubtract, 4}, {"//", Kind::kDivide, 5},    {"*", Kind::kMultiply, 5},
      {"%", Kind::kModulo, 5}};

  int operation(int strength = 0) {
    if (strength == kAtom) return atom();
    if (strength == kNegation && take("not")) return add(Kind::kNot, operation(kNegation));
    int left = operation(strength + 1);
    for (;;) {
      const Operator* found =
          std::find_if(std::begin(kOperators), std::end(kOperators),
                       [&](const Operator& o) { return o.strength == strength && take(o.token); });
      if (found == std::end(kOperators)) return left;
      left = add(found->kind, left, operation(strength + 1));
      if (strength == kComparison) return left;  // Python's chains are not read
    }
  }

  int atom() {
    skip();
    if (take("(")) {
      const int inner = choice();
      expect(")");
      return inner;
    }
    if (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) return number();
    const std::string_view name = word();
    if (name == "len") return of_argument(Kind::kLength);
    if (name == "count") return of_argument(Kind::kCount);
    if (name == "given") return of_argument(Kind::kGiven);
    if (name == "size") return of_argument(Kind::kExtent);
    const int argument = names_.argument(name);
    if (argument < 0) return add(Kind::kSlot, names_.slot(name));
    if (!take("[")) return add(Kind::kValue, argument);
    const int index = choice();
    expect("]");
    return add(Kind::kElement, argument, index);
  }

  int number() {
    char* end;
    const int64_t value = std::strtoll(text_.data() + at_, &end, 10);
    at_ = size_t(end - text_.data());
    const int node = add(Kind::kNumber);
    to_.nodes_[node].number = Number(value);
    return node;
  }

  std::string_view word() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    if (at_ == begin) fail("a name");
    return text_.substr(begin, at_ - begin);
  }

  int of_argument(Kind kind) {
    expect("(");
    skip();
    const int argument = names_.argument(word());
    int dimension = -1;
    if (kind == Kind::kExtent) {
      expect(",");
      dimension = choice();
    }
    expect(")");
    return add(kind, argument, dimension);
  }

  std::string_view text_;
  const Expression::Names& names_;
  Expression& to_;
  size_t at_ = 0;
};

Expression::Expression(std::string_view text, const Names& names) : text_(text) {
  Parser(text, names, *this).parse();
}

int Expression::slot() const {
  return nodes_.size() == 1 && nodes_[0].kind == Kind::kSlot ? nodes_[0].a : -1;
}

namespace {

[[noreturn]] void overflow() { throw std::overflow_error("its sizes overflow 64 bits"); }

// As Python has it: rounded down, with the divisor's sign.
int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) throw std::overflow_error("its sizes ask for a division by zero");
  if (b == -1) return -a;
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

}  // namespace

Number Expression::evaluate(const Scope& scope, int i) const {
  const Node& node = nodes_[i];
  const auto operand = [&](int at) { return evaluate(scope, at); };
  const auto flag = [](bool b) { return Number(int64_t(b)); };
  switch (node.kind) {
    case Kind::kNumber:
      return node.number;
    case Kind::kSlot:
      return scope.size_of(node.a);
    case Kind::kValue:
      return scope.value_of(node.a);
    case Kind::kElement:
      return scope.element_of(node.a, operand(node.b).whole);
    case Kind::kLength:
      return scope.length_of(node.a);
    case Kind::kExtent:
      return scope.extent_of(node.a, operand(node.b).whole);
    case Kind::kCount:
      return scope.count_of(node.a);
    case Kind::kGiven:
      return flag(scope.given(node.a));
    case Kind::kAnd:
      return flag(operand(node.a).is_true() && operand(node.b).is_true());
    case Kind::kOr:
      return flag(operand(node.a).is_true() || operand(node.b).is_true());
    case Kind::kNot:
      return flag(!operand(node.a).is_true());
    case Kind::kIf:
      return operand(operand(node.a).is_true() ? node.b : node.c);
    default:
      break;
  }
  const Number a = operand(node.a), b = operand(node.b);
  const bool real = a.is_real || b.is_real;
  int64_t result;
  switch (node.kind) {
    case Kind::kEqual:
      return flag(real ? a.real == b.real : a.whole == b.whole);
    case Kind::kUnequal:
      return flag(real ? a.real != b.real : a.whole != b.whole);
    case Kind::kLess:
      return flag(real ? a.real < b.real : a.whole < b.whole);
    case Kind::kLessEqual:
      return flag(real ? a.real <= b.real : a.whole <= b.whole);
    case Kind::kGreater:
      return flag(real ? a.real > b.real : a.whole > b.whole);
    case Kind::kGreaterEqual:
      return flag(real ? a.real >= b.real : a.whole >= b.whole);
    case Kind::kAdd:
      if (__builtin_add_overflow(a.whole, b.whole, &result)) overflow();
      return result;
    case Kind::kSubtract:
      if (__builtin_sub_overflow(a.whole, b.whole, &result)) overflow();
      return result;
    case Kind::kMultiply:
      if (__builtin_mul_overflow(a.whole, b.whole, &result)) overflow();
      return result;
    case Kind::kDivide:
      return floor_divide(a.whole, b.whole);
    default:
      return a.whole - floor_divide(a.whole, b.whole) * b.whole;
  }
}

}  // namespace detops
