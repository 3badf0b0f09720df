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

bool is_true(const Expression& x, const Scope& s) { return x(s).real != 0; }

Number either(const Expression& a, const Expression& b, const Scope& s) {
  return int64_t(is_true(a, s) || is_true(b, s));
}

Number both(const Expression& a, const Expression& b, const Scope& s) {
  return int64_t(is_true(a, s) && is_true(b, s));
}

template <typename Holds>
Number compare(const Expression& a, const Expression& b, const Scope& s) {
  const Number x = a(s), y = b(s);
  return int64_t(x.is_real || y.is_real ? Holds()(x.real, y.real) : Holds()(x.whole, y.whole));
}

template <typename Operation>
Number calculate(const Expression& a, const Expression& b, const Scope& s) {
  const __int128 result = Operation()(__int128(a(s).whole), __int128(b(s).whole));
  if (result != int64_t(result)) throw std::overflow_error("its sizes overflow 64 bits");
  return int64_t(result);
}

// As Python has it: rounded down, with the divisor's sign.
Number quotient(const Expression& a, const Expression& b, const Scope& s) {
  const int64_t x = a(s).whole, y = b(s).whole;
  if (y == 0) throw std::overflow_error("its sizes ask for a division by zero");
  if (y == -1) return -x;
  return x / y - int64_t(x % y != 0 && (x < 0) != (y < 0));
}

Number modulo(const Expression& a, const Expression& b, const Scope& s) {
  return a(s).whole - quotient(a, b, s).whole * b(s).whole;
}

// By precedence climbing; the weakest binding first.
class Parser {
 public:
  Parser(std::string_view text, const Lookup& argument, const Lookup& slot)
      : text_(text), argument_(argument), slot_(slot) {}

  Expression parse() {
    Expression whole = choice();
    skip();
    if (at_ != text_.size()) fail("the end");
    return whole;
  }

 private:
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

  Expression choice() {
    Expression yes = operation();
    if (!take("if")) return yes;
    const Expression condition = operation();
    expect("else");
    return [yes, condition, no = choice()](const Scope& s) {
      return is_true(condition, s) ? yes(s) : no(s);
    };
  }

  // From the weakest on; `not` stands between `and` and the comparisons.
  struct Operator {
    const char* token;
    int strength;
    Number (*operation)(const Expression&, const Expression&, const Scope&);
  };
  static constexpr int kNegation = 2, kComparison = 3, kAtom = 6;
  static constexpr Operator kOperators[] = {{"or", 0, either},
                                            {"and", 1, both},
                                            {"==", 3, compare<std::equal_to<>>},
                                            {"!=", 3, compare<std::not_equal_to<>>},
                                            {"<=", 3, compare<std::less_equal<>>},
                                            {">=", 3, compare<std::greater_equal<>>},
                                            {"<", 3, compare<std::less<>>},
                                            {">", 3, compare<std::greater<>>},
                                            {"+", 4, calculate<std::plus<>>},
                                            {"-", 4, calculate<std::minus<>>},
                                            {"//", 5, quotient},
                                            {"*", 5, calculate<std::multiplies<>>},
                                            {"%", 5, modulo}};

  Expression operation(int strength = 0) {
    if (strength == kAtom) return atom();
    if (strength == kNegation && take("not")) {
      return [x = operation(kNegation)](const Scope& s) { return int64_t(!is_true(x, s)); };
    }
    Expression left = operation(strength + 1);
    for (;;) {
      const Operator* found =
          std::find_if(std::begin(kOperators), std::end(kOperators),
                       [&](const Operator& o) { return o.strength == strength && take(o.token); });
      if (found == std::end(kOperators)) return left;
      left = [of = found->operation, left, right = operation(strength + 1)](const Scope& s) {
        return of(left, right, s);
      };
      if (strength == kComparison) return left;  // Python's chains are not read
    }
  }

  Expression atom() {
    if (take("(")) return closed(choice(), ")");
    if (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) {
      char* end;
      const int64_t number = std::strtoll(text_.data() + at_, &end, 10);
      at_ = size_t(end - text_.data());
      return [number](const Scope&) { return number; };
    }
    const std::string_view name = word();
    if (name == "len" || name == "count" || name == "given") {
      expect("(");
      const int i = closed(argument_(word()), ")");
      if (name == "len") return [i](const Scope& s) { return s.arguments[i].size; };
      if (name == "count") return [i](const Scope& s) { return s.arguments[i].tensor().numel(); };
      return [i](const Scope& s) { return int64_t(s.arguments[i].given()); };
    }
    const int i = argument_(name);
    if (i < 0) return [slot = slot_(name)](const Scope& s) { return s.sizes[slot]; };
    if (!take("[")) return [i](const Scope& s) { return s.arguments[i].number(0); };
    return [i, at = closed(choice(), "]")](const Scope& s) {
      return s.arguments[i].number(at(s).whole);
    };
  }

  template <typename T>
  T closed(T inner, const char* bracket) {
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
  const Lookup &argument_, &slot_;
  size_t at_ = 0;
};

}  // namespace

std::string Number::text() const {
  if (!is_real) return std::to_string(whole);
  char digits[32];
  std::snprintf(digits, sizeof digits, "%g", real);
  return digits;
}

Expression parsed(std::string_view text, const Lookup& argument, const Lookup& slot) {
  return Parser(text, argument, slot).parse();
}

}  // namespace detops
