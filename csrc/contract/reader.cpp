// SPDX-License-Identifier: MIT
// Reads the .contract files: a schema or several, and under them lines for all of these.
#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>

#include "contract.h"

namespace detops {
namespace {

// clang-format off
constexpr char kText[] =
#include "nms.contract"
#include "roi.contract"
#include "deform.contract"
#include "boxes.contract"
#include "masks.contract"
#include "maps.contract"
#include "conv.contract"
#include "polygons.contract"
#include "demo.contract"
#include "maskrcnn_benchmark.contract"
    ;
// clang-format on

using Text = std::string_view;

Text trimmed(Text text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// What comes before `mark`, which is taken off `text` with it; all of it where there is no mark.
Text before(Text& text, Text mark) {
  const size_t at = text.find(mark);
  const Text head = text.substr(0, at);
  text = at == Text::npos ? Text() : trimmed(text.substr(at + mark.size()));
  return trimmed(head);
}

// Whether `text` begins with `mark`, which is taken off then.
bool skip(Text& text, Text mark) {
  if (text.substr(0, mark.size()) != mark) return false;
  text = trimmed(text.substr(mark.size()));
  return true;
}

// Parts between commas that stand in no bracket.
std::vector<Text> split(Text text) {
  std::vector<Text> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    depth += (c == '[' || c == '(') - (c == ']' || c == ')');
    if (c != ',' || depth > 0) continue;
    const Text part = trimmed(text.substr(begin, i - begin));
    if (!part.empty()) parts.push_back(part);
    begin = i + 1;
  }
  return parts;
}

bool is_word(Text text) {
  return !text.empty() && !std::isdigit(static_cast<unsigned char>(text[0])) &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

int place_of(Text name, const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? -1 : int(found - names.begin());
}

int64_t number(Text text) { return std::stoll(std::string(text)); }

[[noreturn]] void fail(const std::string& what, Text where) {
  throw std::logic_error("a contract: " + what + ": " + std::string(where));
}

constexpr TypeClass kClasses[] = {
    {"float", is_float, "float32, float64, float16 or bfloat16"},
    {"integer", is_integer, "int64, int32, int16, int8 or uint8"},
    {"numbers", [](ScalarType t) { return is_float(t) || is_integer(t); },
     "float32, float64, float16 or bfloat16, or int64, int32, int16, int8 or uint8"},
    {"discrete", is_discrete, "integers or bool"},
    {"real", [](ScalarType t) { return is_float(t) || is_discrete(t); },
     "bool, an integer or float32, float64, float16 or bfloat16"},
    {"mask", [](ScalarType t) { return t == kBool || t == kByte; }, "bool or uint8"},
    {"any", [](ScalarType) { return true; }, "of any dtype"}};

// Lines of one op.
class Reader {
 public:
  Reader(Text name, Text rest) {
    contract_.op = contract_.name = name;
    contract_.schema = contract_.op + std::string(rest);
    const Text formals = before(rest, ") -> ");
    contract_.returns = rest[0] == '(' ? split(rest.substr(1, rest.size() - 2)).size() : 1;
    for (Text formal : split(formals.substr(1))) {
      const Text type = before(formal, " ");
      contract_.arguments.emplace_back(before(formal, "="));
      // A size that is given as a number has a bound, so that products of two do not leave 64 bits.
      // Those of results are counted where their sizes are known.
      const int place = int(contract_.arguments.size()) - 1;
      if (type.substr(0, 6) == "SymInt") {
        read_rule(place, "at most " + std::to_string(Dimension::kMost));
      }
    }
  }

  void read(Text line) {
    if (skip(line, "called ")) {
      const std::string name(before(line, " for "));
      if (contract_.names.empty()) contract_.name = name;
      for (const Text word : split(line)) contract_.names.emplace_back(word, name);
    } else if (skip(line, "->")) {
      read_output(line);
    } else if (line.find(" | ") != Text::npos) {
      const bool is_limit = skip(line, "limit ");
      Line to{expression(before(line, " | "))};
      to.message = message(line);
      to.is_limit = is_limit;
      contract_.lines.push_back(std::move(to));
    } else if (line.find(": ") != Text::npos) {
      const Text names = before(line, ": ");
      for (const Text name : split(names)) read_argument(argument(name), line);
    } else if (line.find(" = ") != Text::npos) {
      const Text name = before(line, " = ");
      const Expression value = expression(line);
      contract_.lines.push_back({value, {}, slot(name)});
    } else {
      fail("not a line", line);
    }
  }

  Contract take() { return std::move(contract_); }

 private:
  int argument(Text name) const { return place_of(name, contract_.arguments); }

  int slot(Text name) {
    const int place = place_of(name, slots_);
    if (place >= 0) return place;
    if (slots_.size() == Scope::kMostSlots) fail("too many names", name);
    slots_.emplace_back(name);
    return int(slots_.size()) - 1;
  }

  Expression expression(Text text) {
    return parsed(
        text, [this](Text name) { return argument(name); },
        [this](Text name) { return slot(name); });
  }

  Type type(Text text) const {
    for (const TypeClass& each : kClasses) {
      if (text == each.name) return {Type::Kind::kClass, &each};
    }
    for (const ScalarType one : {kBool, kByte, kInt, kLong, kFloat}) {
      if (text == dtype_name(one)) return {Type::Kind::kOne, nullptr, one};
    }
    const Text how = before(text, " "), first = before(text, " ");
    if (how != "as" && how != "wide") fail("not a dtype", how);
    const Type::Kind kind = how == "as" ? Type::Kind::kAs : Type::Kind::kWide;
    return {kind, nullptr, {}, argument(first), text.empty() ? -1 : argument(text)};
  }

  Dimension dimension(Text text) {
    Text least = text;
    text = before(least, " >= ");
    const bool optional = text.back() == '?';
    if (optional) text.remove_suffix(1);
    Dimension to{std::string(text), text == "...", optional};
    if (!least.empty()) to.least = number(least);
    if (is_word(text) && argument(text) < 0) {
      if (text != "_") to.slot = slot(text);
    } else if (!to.many) {
      to.size = expression(text);
    }
    return to;
  }

  // `[N, 4]`, which is taken off the text with all before it.
  Shape shape(Text& text) {
    const size_t open = text.find('[');
    size_t close = open;
    for (int depth = 0; close < text.size(); ++close) {
      depth += (text[close] == '[') - (text[close] == ']');
      if (depth == 0) break;
    }
    if (close >= text.size()) fail("no shape", text);
    Shape to;
    for (const Text part : split(text.substr(open + 1, close - open - 1))) {
      to.by_values |= part == "?";
      if (part == "?") continue;
      to.dimensions.push_back(dimension(part));
      to.many |= to.dimensions.back().many;
      to.optional |= to.dimensions.back().optional;
    }
    text = trimmed(text.substr(close + 1));
    return to;
  }

  // What is no argument here stands in a line about several ops.
  void read_argument(int place, Text what) {
    if (place < 0) return;
    const size_t open = what.find(" [");
    if (open == Text::npos || what.substr(0, open) == "in") return read_rule(place, what);
    Line to;
    to.argument = place;
    to.type = type(what.substr(0, open));
    to.shape = shape(what);
    to.on_cpu_too = what == "or on the CPU";
    contract_.lines.push_back(std::move(to));
  }

  // What all numbers of an argument must be, or a text.
  void read_rule(int place, Text text) {
    double low = -std::numeric_limits<double>::infinity(), high = -low;
    bool above = false;  // not `low` itself
    std::vector<std::string> words;
    std::string what = contract_.arguments[place] + " must be ";
    what += text == "positive" ? "positive and finite" : text;
    if (text == "finite" || text == "positive") {
      high = std::numeric_limits<double>::max();
      above = text == "positive";
      low = above ? 0 : -high;
    } else if (skip(text, "at least ")) {
      low = double(number(text));
    } else if (skip(text, "at most ")) {
      high = double(number(text));
    } else if (skip(text, "in [")) {
      low = double(number(before(text, ",")));
      high = double(number(text));
    } else if (text != "a number") {
      for (const Text word : split(before(text, " or "))) words.emplace_back(word);
      words.emplace_back(text);
    }
    const auto holds = [=](const Scope& s) {
      const Argument& a = s.arguments[place];
      if (a.kind == Argument::Kind::kText) {
        return int64_t(std::find(words.begin(), words.end(), a.text()) != words.end());
      }
      int64_t all = 1;
      for (int64_t i = 0; i < a.size; ++i) {
        const double x = a.number(i).real;
        all &= (above ? x > low : x >= low) && x <= high;
      }
      return all;
    };
    contract_.lines.push_back(
        {holds, [=](const Scope& s) { return what + ", got " + s.arguments[place].shown(); }});
  }

  // A text with values in its braces: of arguments, or of expressions.
  Message message(Text text) {
    const size_t open = text.find('{'), close = text.find('}');
    std::string head(text.substr(0, open));
    if (open == Text::npos) return [head](const Scope&) { return head; };
    const Text hole = text.substr(open + 1, close - open - 1);
    const int whole = argument(hole);
    const Expression value = whole < 0 ? expression(hole) : Expression();
    const Message rest = message(text.substr(close + 1));
    return [=](const Scope& s) {
      return head + (whole < 0 ? value(s).text() : s.arguments[whole].shown()) + rest(s);
    };
  }

  void read_output(Text text) {
    Text types = trimmed(text.substr(0, text.find('[')));
    OutputLine to{type(before(types, " in "))};
    if (!types.empty()) to.computed = type(types);
    to.shape = shape(text);
    if (skip(text, "like ")) to.like = argument(before(text, " "));
    if (skip(text, "for ")) {
      to.repeated = expression(before(text, " "));
      contract_.index_slot = slot("i");
    }
    if (skip(text, "if ")) {
      to.wanted = expression(before(text, " else "));
      if (!text.empty()) to.otherwise = type(text);
    }
    contract_.outputs.push_back(std::move(to));
  }

  Contract contract_{};
  std::vector<std::string> slots_;
};

std::vector<Contract> read_all() {
  std::vector<Reader> readers;
  std::map<Text, std::vector<Text>> checks;  // of groups and ops, by their names
  std::vector<Text> names;                   // of those that the next lines are about
  size_t first = 0;                          // reader of the ops among them
  const auto read = [&](Text line) {
    for (size_t i = first; i < readers.size(); ++i) readers[i].read(line);
    if (line.substr(0, 2) == "->" || line.substr(0, 7) == "called ") return;
    for (const Text name : names) checks[name].push_back(line);
  };
  bool in_lines = false;
  for (Text rest = kText; !rest.empty();) {
    Text line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (trimmed(line).empty() || line[0] == '#') continue;
    if (line[0] != ' ') {
      if (std::exchange(in_lines, false)) {
        names.clear();
        first = readers.size();
      }
      const bool is_group = skip(line, "group ");
      const Text heads = line.substr(0, line.find('('));
      for (const Text name : split(heads)) {
        if (!checks.emplace(name, std::vector<Text>()).second) fail("a second one", name);
        names.push_back(name);
        if (!is_group) readers.emplace_back(name, line.substr(heads.size()));
      }
      continue;
    }
    in_lines = true;
    line = trimmed(line);
    if (!skip(line, "use ")) {
      read(line);
      continue;
    }
    for (const Text name : split(line)) {
      if (checks.count(name) == 0) fail("nothing to use", name);
      for (const Text each : checks[name]) read(each);
    }
  }
  std::vector<Contract> contracts;
  contracts.reserve(readers.size());
  for (Reader& reader : readers) contracts.push_back(reader.take());
  for (Contract& each : contracts) {
    const std::string caller = each.op.substr(0, each.op.rfind("_forward"));
    const bool exists = std::any_of(contracts.begin(), contracts.end(),
                                    [&](const Contract& other) { return other.op == caller; });
    if (exists && each.name == each.op) each.name = caller;
  }
  return contracts;
}

}  // namespace

const char* Contract::text() { return kText; }

const std::vector<Contract>& Contract::all() {
  static const std::vector<Contract> contracts = read_all();
  return contracts;
}

const Contract& Contract::of(std::string_view op) {
  const auto found = std::find_if(all().begin(), all().end(),
                                  [&](const Contract& contract) { return contract.op == op; });
  if (found == all().end()) throw std::logic_error("no contract of " + std::string(op));
  return *found;
}

}  // namespace detops
