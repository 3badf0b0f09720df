// SPDX-License-Identifier: MIT
// Reads ops.contract: a schema or several, and under them lines for all of these.
#include <algorithm>
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
  text = at == Text::npos ? Text() : text.substr(at + mark.size());
  return trimmed(head);
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
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_';
  }) && !std::isdigit(static_cast<unsigned char>(text[0]));
}

[[noreturn]] void fail(const std::string& what, Text where) {
  throw std::logic_error("a contract: " + what + ": " + std::string(where));
}

constexpr std::pair<const char*, ScalarType> kTypes[] = {{"bool", ScalarType::Bool},
                                                         {"uint8", ScalarType::Byte},
                                                         {"int32", ScalarType::Int},
                                                         {"int64", ScalarType::Long},
                                                         {"float32", ScalarType::Float}};
constexpr std::pair<const char*, Type::Kind> kClasses[] = {{"float", Type::Kind::kFloat},
                                                           {"integer", Type::Kind::kInteger},
                                                           {"numbers", Type::Kind::kNumbers},
                                                           {"real", Type::Kind::kReal},
                                                           {"discrete", Type::Kind::kDiscrete},
                                                           {"mask", Type::Kind::kMask},
                                                           {"any", Type::Kind::kAny}};

}  // namespace

// Lines of one op.
class Reader {
 public:
  explicit Reader(Text schema) {
    contract_.schema_ = schema;
    contract_.op_ = before(schema, "(");
    contract_.name_ = contract_.op_;
    const Text formals = before(schema, ") -> ");
    contract_.returns_ = schema[0] == '(' ? split(schema.substr(1, schema.size() - 2)).size() : 1;
    for (Text formal : split(formals)) {
      const Text type = before(formal, " ");
      contract_.arguments_.push_back(
          {std::string(before(formal, "=")), std::string(type), type.substr(0, 6) == "SymInt"});
    }
  }

  void read(Text line) {
    if (line.substr(0, 7) == "called ") {
      Text word = line.substr(7);
      const std::string name(before(word, " for "));
      contract_.name_ = contract_.names_.empty() ? name : contract_.name_;
      if (!word.empty()) contract_.names_.emplace_back(word, name);
      return;
    }
    if (line.substr(0, 2) == "->") return read_output(trimmed(line.substr(2)));
    if (const size_t bar = line.find(" | "); bar != Text::npos) {
      return read_check(line.substr(0, bar), trimmed(line.substr(bar + 3)));
    }
    const size_t colon = line.find(": "), equals = line.find(" = ");
    if (colon != Text::npos) return read_argument(line.substr(0, colon), line.substr(colon + 2));
    if (equals == Text::npos) fail("not a line", line);
    Line to{Line::Kind::kName};
    to.expression = expression(line.substr(equals + 3));
    to.slot = slot(trimmed(line.substr(0, equals)));
    contract_.lines_.push_back(std::move(to));
  }

  Contract take() { return std::move(contract_); }

 private:
  int argument(Text name) const {
    const auto& formals = contract_.arguments_;
    const auto found = std::find_if(formals.begin(), formals.end(),
                                    [&](const auto& formal) { return formal.name == name; });
    return found == formals.end() ? -1 : int(found - formals.begin());
  }

  int slot(Text name) {
    auto& slots = contract_.slots_;
    const auto found = std::find(slots.begin(), slots.end(), name);
    if (found != slots.end()) return int(found - slots.begin());
    slots.emplace_back(name);
    return int(slots.size()) - 1;
  }

  Expression expression(Text text) {
    return Expression(trimmed(text), {[this](Text name) { return argument(name); },
                                      [this](Text name) { return slot(name); }});
  }

  Type type(Text text) {
    for (const auto& [name, kind] : kClasses) {
      if (text == name) return {kind};
    }
    for (const auto& [name, one] : kTypes) {
      if (text == name) return {Type::Kind::kOne, one};
    }
    const Text how = before(text, " "), first = before(text, " ");
    if (how != "as" && how != "wide") fail("not a dtype", how);
    return {how == "as" ? Type::Kind::kAs : Type::Kind::kWide,
            {},
            argument(first),
            text.empty() ? -1 : argument(trimmed(text))};
  }

  Dimension dimension(Text text) {
    Dimension to{Dimension::Kind::kSize};
    if (const size_t at = text.find(" >= "); at != Text::npos) {
      to.least = std::stoll(std::string(text.substr(at + 4)));
      text = text.substr(0, at);
    }
    if (text.back() == '?') {
      to.optional = true;
      text.remove_suffix(1);
    }
    to.text = text;
    if (text == "...") {
      to.kind = Dimension::Kind::kMany;
    } else if (text == "_") {
      to.kind = Dimension::Kind::kAny;
    } else if (text != "" && is_word(text) && argument(text) < 0) {
      to.kind = Dimension::Kind::kName;
      to.slot = slot(text);
    } else {
      to.size = expression(text);
    }
    return to;
  }

  // `[N, 4]`, which is taken off the text.
  Shape shape(Text& text) {
    Shape to;
    const size_t open = text.find('['), close = text.rfind(']');
    if (open == Text::npos || close == Text::npos) fail("no shape", text);
    for (const Text part : split(text.substr(open + 1, close - open - 1))) {
      if (part == "?") continue;
      to.dimensions.push_back(dimension(part));
      to.many |= to.dimensions.back().kind == Dimension::Kind::kMany;
      to.optional |= to.dimensions.back().optional;
    }
    text = trimmed(text.substr(close + 1));
    return to;
  }

  void read_argument(Text name, Text what) {
    Line to{Line::Kind::kTensor};
    to.argument = argument(name);
    if (to.argument < 0) return;  // a line of a group, about an argument of other ops
    if (what.find(" [") == Text::npos || what.substr(0, 4) == "in [") {
      to.kind = Line::Kind::kRule;
      to.rule = rule(what);
    } else {
      const size_t open = what.find(" [");
      to.type = type(what.substr(0, open));
      to.shape = shape(what);
      to.on_cpu_too = what == "or on the CPU";
    }
    contract_.lines_.push_back(std::move(to));
  }

  Rule rule(Text text) {
    Rule to{Rule::Kind::kOneOf};
    to.text = text;
    const auto bound = [&](Text words) {
      return std::stoll(std::string(text.substr(words.size())));
    };
    if (text == "a number") {
      to.kind = Rule::Kind::kNumber;
    } else if (text == "finite") {
      to.kind = Rule::Kind::kFinite;
    } else if (text == "positive") {
      to.kind = Rule::Kind::kPositive;
      to.text = "positive and finite";
    } else if (text.substr(0, 9) == "at least ") {
      to.kind = Rule::Kind::kAtLeast;
      to.low = bound("at least ");
    } else if (text.substr(0, 8) == "at most ") {
      to.kind = Rule::Kind::kAtMost;
      to.high = bound("at most ");
    } else if (text.substr(0, 4) == "in [") {
      to.kind = Rule::Kind::kWithin;
      to.low = bound("in [");
      to.high = std::stoll(std::string(text.substr(text.find(',') + 1)));
    } else {
      const size_t last = text.find(" or ");
      for (const Text word : split(text.substr(0, last))) to.words.emplace_back(word);
      to.words.emplace_back(text.substr(last + 4));
    }
    return to;
  }

  void read_check(Text condition, Text message) {
    Line to{Line::Kind::kCheck};
    to.expression = expression(condition);
    while (!message.empty()) {
      const size_t open = message.find('{');
      to.texts.emplace_back(message.substr(0, open));
      if (open == Text::npos) break;
      const size_t close = message.find('}');
      const Text hole = message.substr(open + 1, close - open - 1);
      // A number is an expression; a tensor and a list are written whole.
      const int whole = argument(hole);
      const std::string kind = whole < 0 ? "" : contract_.arguments_[whole].type;
      const bool number = kind == "int" || kind == "SymInt" || kind == "float";
      to.holes.emplace_back(whole < 0 || number ? expression(hole) : Expression(),
                            number ? -1 : whole);
      message = message.substr(close + 1);
    }
    contract_.lines_.push_back(std::move(to));
  }

  void read_output(Text text) {
    OutputLine to;
    const size_t open = text.find(" [");
    to.type = type(text.substr(0, open));
    Text rest = text.substr(open);
    // What comes after may have brackets, too.
    size_t close = 1, depth = 0;
    do {
      depth += rest[close] == '[';
      depth -= rest[close++] == ']';
    } while (depth > 0);
    Text brackets = rest.substr(0, close);
    to.by_values = brackets == " [?]";
    to.shape = shape(brackets);
    rest = trimmed(rest.substr(close));
    if (const size_t at = rest.find("for "); at != Text::npos) {
      to.repeated = expression(rest.substr(at + 4));
      contract_.index_slot_ = slot("i");
      rest = trimmed(rest.substr(0, at));
    }
    if (const size_t at = rest.find("if "); at != Text::npos) {
      Text condition = rest.substr(at + 3);
      to.wanted = expression(before(condition, " else "));
      to.has_otherwise = !condition.empty();
      if (to.has_otherwise) to.otherwise = type(trimmed(condition));
      rest = trimmed(rest.substr(0, at));
    }
    if (rest.substr(0, 5) == "like ") to.like = argument(rest.substr(5));
    contract_.outputs_.push_back(std::move(to));
  }

  Contract contract_;
};

namespace {

std::vector<Contract> read_all() {
  std::vector<Contract> contracts;
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  std::vector<Reader> readers;  // of the schemas above the line
  bool in_group = false, in_lines = false;
  const auto close = [&] {
    for (Reader& reader : readers) contracts.push_back(reader.take());
    readers.clear();
  };
  Text rest = kText;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    const Text line = rest.substr(0, end);
    rest = end == Text::npos ? Text() : rest.substr(end + 1);
    if (trimmed(line).empty() || line[0] == '#') continue;
    if (line[0] == ' ') {
      in_lines = true;
      std::vector<std::string> lines{std::string(trimmed(line))};
      if (lines[0].substr(0, 4) == "use ") {
        const std::string name = lines[0].substr(4);
        const auto group = std::find_if(groups.begin(), groups.end(),
                                        [&](const auto& g) { return g.first == name; });
        if (group == groups.end()) fail("no such group", name);
        lines = group->second;
      }
      for (const std::string& each : lines) {
        if (in_group) groups.back().second.push_back(each);
        for (Reader& reader : readers) reader.read(each);
      }
      continue;
    }
    if (in_lines) close();
    in_lines = false;
    in_group = line.substr(0, 6) == "group ";
    if (in_group) {
      groups.push_back({std::string(line.substr(6)), {}});
    } else {
      readers.emplace_back(line);
    }
  }
  close();
  return contracts;
}

// `op` without `suffix`, or nothing.
Text without(Text op, Text suffix) {
  const bool ends = op.size() > suffix.size() && op.substr(op.size() - suffix.size()) == suffix;
  return ends ? op.substr(0, op.size() - suffix.size()) : Text();
}

}  // namespace

const char* Contract::text() { return kText; }

const std::vector<Contract>& Contract::all() {
  static const std::vector<Contract> contracts = [] {
    std::vector<Contract> all = read_all();
    for (Contract& each : all) {
      const Text name = without(each.op(), "_forward");
      for (const Contract& other : all) {
        if (other.op() == name && each.name_ == each.op_) each.name_ = name;
      }
    }
    return all;
  }();
  return contracts;
}

const Contract& Contract::of(std::string_view op) {
  for (const Contract& contract : all()) {
    if (contract.op() == op) return contract;
  }
  throw std::logic_error("no contract of " + std::string(op));
}

}  // namespace detops
