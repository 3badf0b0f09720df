// SPDX-License-Identifier: MIT
#include "expression.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <stdexcept>

namespace detops {
namespace {

template <typename Holds>
Number compare(const Number& a, const Number& b) {
  const bool real = a.is_real || b.is_real;
  return int64_t(real ? Holds()(a.real, b.real) : Holds()(a.whole, b.whole));
}

template <typename Operation>
Number calculate(const Number& a, const Number& b) {
  const __int128 result = Operation()(__int128(a.whole), __int128(b.whole));
  if (result != int64_t(result)) throw std::overflow_error("its sizes overflow 64 bits");
  return int64_t(result);
}

// As Python has it: rounded down, with the divisor's sign.
Number divide(const Number& a, const Number& b) {
  if (b.whole == 0) throw std::overflow_error("its sizes ask for a division by zero");
  if (b.whole == -1) return -a.whole;
  const bool negative = (a.whole < 0) != (b.whole < 0);
  return a.whole / b.whole - int64_t(negative && a.whole % b.whole != 0);
}

Number modulo(const Number& a, const Number& b) {
  return a.whole - divide(a, b).whole * b.whole;
}

}  // namespace

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
    if (is_name(token[0]) && end < text_.size() && is_name(text_[end])) return false;
    at_ = end;
    return true;
  }

  void expect(const char* token) {
    if (!take(token)) fail(token);
  }

  static bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

  int add(Expression::Node node) {
    to_.nodes_.push_back(node);
    return int(to_.nodes_.size()) - 1;
  }

  int choice() {
    const int yes = operation();
    if (!take("if")) return yes;
    const int condition = operation();
    expect("else");
    return add({Kind::kIf, condition, yes, choice()});
  }

  // From the weakest on; `not` stands between `and` and the comparisons.
  struct Operator {
    const char* token;
    int strength;
    Kind kind;
    Number (*operation)(const Number&, const Number&);
  };
  static constexpr int kNegation = 2, kComparison = 3, kAtom = 6;
  static constexpr Operator kOperators[] = {{"or", 0, Kind::kOr, nullptr},
                                            {"and", 1, Kind::kAnd, nullptr},
                                            {"==", 3, Kind::kBinary, compare<std::equal_to<>>},
                                            {"!=", 3, Kind::kBinary, compare<std::not_equal_to<>>},
                                            {"<=", 3, Kind::kBinary, compare<std::less_equal<>>},
                                            {">=", 3, Kind::kBinary, compare<std::greater_equal<>>},
                                            {"<", 3, Kind::kBinary, compare<std::less<>>},
                                            {">", 3, Kind::kBinary, compare<std::greater<>>},
                                            {"+", 4, Kind::kBinary, calculate<std::plus<>>},
                                            {"-", 4, Kind::kBinary, calculate<std::minus<>>},
                                            {"//", 5, Kind::kBinary, divide},
                                            {"*", 5, Kind::kBinary, calculate<std::multiplies<>>},
                                            {"%", 5, Kind::kBinary, modulo}};

  int operation(int strength = 0) {
    if (strength == kAtom) return atom();
    if (strength == kNegation && take("not")) return add({Kind::kNot, operation(kNegation)});
    int left = operation(strength + 1);
    for (;;) {
      const Operator* found =
          std::find_if(std::begin(kOperators), std::end(kOperators),
                       [&](const Operator& o) { return o.strength == strength && take(o.token); });
      if (found == std::end(kOperators)) return left;
      left = add({found->kind, left, operation(strength + 1), -1, 0, found->operation});
      if (strength == kComparison) return left;  // Python's chains are not read
    }
  }

  int atom() {
    if (take("(")) return closed(choice(), ")");
    if (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) {
      char* end;
      const int64_t number = std::strtoll(text_.data() + at_, &end, 10);
      at_ = size_t(end - text_.data());
      return add({Kind::kNumber, -1, -1, -1, number});
    }
    const std::string_view name = word();
    for (const auto& [function, kind] :
         {std::pair("len", Kind::kLength), std::pair("count", Kind::kCount),
          std::pair("given", Kind::kGiven)}) {
      if (name != function) continue;
      expect("(");
      return closed(add({kind, names_.argument(word())}), ")");
    }
    const int argument = names_.argument(name);
    if (argument < 0) return add({Kind::kSlot, names_.slot(name)});
    return add({Kind::kValue, argument, take("[") ? closed(choice(), "]") : -1});
  }

  int closed(int inner, const char* bracket) {
    expect(bracket);
    return inner;
  }

  std::string_view word() {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    if (at_ == begin) fail("a name");
    return text_.substr(begin, at_ - begin);
  }

  std::string_view text_;
  const Expression::Names& names_;
  Expression& to_;
  size_t at_ = 0;
};

Expression::Expression(std::string_view text, const Names& names) {
  Parser(text, names, *this).parse();
}

Number Expression::evaluate(const Scope& scope, int i) const {
  const Node& node = nodes_[i];
  const auto operand = [&](int at) { return evaluate(scope, at); };
  const auto is_true = [&](int at) { return operand(at).real != 0; };
  switch (node.kind) {
    case Kind::kNumber:
      return node.number;
    case Kind::kSlot:
      return scope.sizes[node.a];
    case Kind::kValue:
      return scope.arguments[node.a].number(node.b < 0 ? 0 : operand(node.b).whole);
    case Kind::kLength:
      return scope.arguments[node.a].size;
    case Kind::kCount:
      return scope.arguments[node.a].tensors()->numel();
    case Kind::kGiven:
      return int64_t(scope.arguments[node.a].kind != Argument::Kind::kNone);
    case Kind::kAnd:
      return int64_t(is_true(node.a) && is_true(node.b));
    case Kind::kOr:
      return int64_t(is_true(node.a) || is_true(node.b));
    case Kind::kNot:
      return int64_t(!is_true(node.a));
    case Kind::kIf:
      return operand(is_true(node.a) ? node.b : node.c);
    default:
      return node.operation(operand(node.a), operand(node.b));
  }
}

}  // namespace detops
