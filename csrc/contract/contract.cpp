// SPDX-License-Identifier: MIT
#include "contract.h"

#include <cmath>
#include <cstdint>
#include <stdexcept>

namespace detops {
namespace {

constexpr int kMostSlots = 32;
constexpr int64_t kMissing = INT64_MIN;  // of a dimension that need not be there
// Sizes that are given as numbers, so that products of two do not leave 64 bits. Those of tensors
// need no bound: their memory is one.
constexpr int64_t kMostSize = INT32_MAX;

template <typename T>
std::string list_text(const T* items, int64_t count) {
  std::string text = "[";
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, double>) {
      text += (i ? ", " : "") + Number(items[i]).text();
    } else {
      text += (i ? ", " : "") + std::to_string(items[i]);
    }
  }
  return text + "]";
}

std::string shape_text(const TensorFacts& t) { return list_text(t.sizes, t.dim); }

std::string device_text(const TensorFacts& t) {
  constexpr const char* kNames[] = {"cpu", "cuda"};
  const std::string name =
      t.device < 2 ? kNames[t.device] : "device type " + std::to_string(t.device);
  return t.index < 0 ? name : name + ":" + std::to_string(t.index);
}

// One call.
class Check final : public Scope {
 public:
  Check(const Contract& contract, const Argument* arguments, size_t slots, std::string_view name)
      : contract_(contract), arguments_(arguments), name_(name) {
    if (slots > kMostSlots) throw std::logic_error("a contract: too many names");
  }

  Number size_of(int slot) const override { return sizes_[slot]; }
  Number value_of(int i) const override { return element_of(i, 0); }
  Number element_of(int i, int64_t at) const override {
    const Argument& a = arguments_[i];
    if (a.kind == Argument::Kind::kInts) return a.ints()[at];
    if (a.kind == Argument::Kind::kFlags) return int64_t(a.flags()[at]);
    return a.floats()[at];
  }
  int64_t length_of(int i) const override { return arguments_[i].size; }
  int64_t extent_of(int i, int64_t d) const override { return arguments_[i].tensors()[0].sizes[d]; }
  int64_t count_of(int i) const override {
    int64_t count = 1;
    const TensorFacts& t = arguments_[i].tensors()[0];
    for (int64_t d = 0; d < t.dim; ++d) count *= t.sizes[d];
    return count;
  }
  bool given(int i) const override { return i >= 0 && arguments_[i].kind != Argument::Kind::kNone; }

  void line(const Line& line) {
    if (line.argument >= 0 && !given(line.argument)) return;
    switch (line.kind) {
      case Line::Kind::kTensor:
        for (int64_t i = 0; i < arguments_[line.argument].size; ++i) {
          tensor(line, arguments_[line.argument].tensors()[i]);
        }
        return;
      case Line::Kind::kRule:
        return rule(line);
      case Line::Kind::kName:
        return name(line.slot, line.expression.evaluate(*this).whole);
      case Line::Kind::kCheck:
        if (!line.expression.evaluate(*this).is_true()) refuse(message(line));
    }
  }

  // SymInts: before anything is made of them.
  void sizes(const std::string& name, const Argument& a) {
    for (int64_t i = 0; i < a.size; ++i) {
      if (a.ints()[i] > kMostSize) {
        refuse(name + " must be at most " + std::to_string(kMostSize) + ", got " + value_text(a));
      }
    }
  }

  void output(const OutputLine& line, Output& to) const {
    const bool wanted = !line.wanted || line.wanted->evaluate(*this).is_true();
    to.dtype = type_of(wanted || !line.has_otherwise ? line.type : line.otherwise);
    to.channels_last = false;
    if (!wanted && !line.has_otherwise) {
      to.dim = 1;
      to.sizes[0] = 0;
      return;
    }
    to.dim = 0;
    const auto add = [&](int64_t size) {
      if (to.dim == Output::kMostDimensions) refuse("too many dimensions");
      to.sizes[to.dim++] = size;
    };
    for (const Dimension& d : line.shape.dimensions) {
      if (d.kind == Dimension::Kind::kMany) {
        for (int64_t i = 0; i < many_count_; ++i) add(many_[i]);
      } else if (d.kind != Dimension::Kind::kName) {
        add(d.size.evaluate(*this).whole);
      } else if (sizes_[d.slot] != kMissing) {
        add(sizes_[d.slot]);
      }
    }
    if (line.like >= 0) to.channels_last = is_channels_last(arguments_[line.like].tensors()[0]);
  }

  void name(int slot, int64_t size) {
    sizes_[slot] = size;
    known_ |= uint32_t(1) << slot;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw std::runtime_error("detops." + std::string(name_) + ": " + what);
  }

  const std::string& name_of(const Line& line) const { return contract_.argument(line.argument); }

  void tensor(const Line& line, const TensorFacts& t) {
    if (!shape_holds(line.shape, t)) {
      refuse(name_of(line) + " must be " + expected(line.shape) + ", got " + shape_text(t));
    }
    if (!type_holds(line.type, t.dtype)) {
      refuse(name_of(line) + " must " + type_text(line.type) + ", got " + dtype_name(t.dtype));
    }
    const TensorFacts& first_of_list = arguments_[line.argument].tensors()[0];
    if (t.dtype != first_of_list.dtype) {
      refuse(name_of(line) + " must share one dtype (" + dtype_name(first_of_list.dtype) +
             "), got " + dtype_name(t.dtype));
    }
    if (first_ == nullptr) {
      first_ = &t;
      first_name_ = &name_of(line);
    } else if (t.device != first_->device || t.index != first_->index) {
      if (line.on_cpu_too && t.device == 0) return;
      refuse(name_of(line) + " must be on the device of " + *first_name_ + " (" +
             device_text(*first_) + ")" + (line.on_cpu_too ? " or on the CPU" : "") + ", got " +
             device_text(t));
    }
  }

  bool shape_holds(const Shape& shape, const TensorFacts& t) {
    const int64_t written = int64_t(shape.dimensions.size()), fixed = written - shape.many;
    const bool missing = shape.optional && t.dim == fixed - 1;
    known_before_ = known_;
    many_before_ = many_ != nullptr;
    if (shape.many ? t.dim < fixed : t.dim != fixed && !missing) return false;
    int64_t at = 0;
    for (const Dimension& d : shape.dimensions) {
      if (d.kind == Dimension::Kind::kMany) {
        const int64_t count = t.dim - fixed;
        if (many_ == nullptr) {
          many_ = t.sizes + at;
          many_count_ = count;
        } else if (count != many_count_ || !std::equal(many_, many_ + count, t.sizes + at)) {
          return false;
        }
        at += count;
        continue;
      }
      const bool named = d.kind == Dimension::Kind::kName;
      const int64_t size = d.optional && missing ? kMissing : t.sizes[at++];
      if (size != kMissing && size < d.least) {
        too_small_ = true;
        return false;
      }
      if (named && !(known_ >> d.slot & 1)) {
        name(d.slot, size);
      } else if (named ? size != sizes_[d.slot]
                       : d.kind == Dimension::Kind::kSize && size != kMissing &&
                             size != d.size.evaluate(*this).whole) {
        return false;
      }
    }
    return true;
  }

  // The shape with what is known of it as numbers.
  std::string expected(const Shape& shape) {
    const auto with = [&](bool all) {
      std::string text;
      for (const Dimension& d : shape.dimensions) {
        if (d.optional && !all) continue;
        std::string size = d.text;
        if (too_small_ && d.least > 0) size += " >= " + std::to_string(d.least);
        if (d.kind == Dimension::Kind::kName && (known_before_ >> d.slot & 1)) {
          if (sizes_[d.slot] == kMissing) continue;
          size = std::to_string(sizes_[d.slot]);
        } else if (d.kind == Dimension::Kind::kSize) {
          size = d.size.evaluate(*this).text();
        } else if (d.kind == Dimension::Kind::kMany && many_before_) {
          size = list_text(many_, many_count_);
          size = size.substr(1, size.size() - 2);
        }
        if (!size.empty()) text += (text.empty() ? "" : ", ") + size;
      }
      return "[" + text + "]";
    };
    const std::string all = with(true), some = with(false);
    return all == some ? all : some + " or " + all;
  }

  ScalarType type_of(const Type& type) const {
    if (type.kind == Type::Kind::kOne) return type.one;
    const int argument = given(type.argument) ? type.argument : 0;
    ScalarType found = arguments_[argument].tensors()[0].dtype;
    if (type.other >= 0) found = promoted_type(found, arguments_[type.other].tensors()[0].dtype);
    return type.kind == Type::Kind::kWide ? compute_type(found) : found;
  }

  bool type_holds(const Type& type, ScalarType got) const {
    switch (type.kind) {
      case Type::Kind::kFloat:
        return is_float(got);
      case Type::Kind::kInteger:
        return is_integer(got);
      case Type::Kind::kNumbers:
        return is_float(got) || is_integer(got);
      case Type::Kind::kDiscrete:
        return is_discrete(got);
      case Type::Kind::kReal:
        return is_float(got) || is_discrete(got);
      case Type::Kind::kMask:
        return got == ScalarType::Bool || got == ScalarType::Byte;
      case Type::Kind::kAny:
        return true;
      default:
        return got == type_of(type);
    }
  }

  std::string type_text(const Type& type) const {
    switch (type.kind) {
      case Type::Kind::kFloat:
        return "be float32, float64, float16 or bfloat16";
      case Type::Kind::kInteger:
        return "be int64, int32, int16, int8 or uint8";
      case Type::Kind::kNumbers:
        return "be float32, float64, float16 or bfloat16, or int64, int32, int16, int8 or uint8";
      case Type::Kind::kDiscrete:
        return "be integers or bool";
      case Type::Kind::kReal:
        return "be bool, an integer or float32, float64, float16 or bfloat16";
      case Type::Kind::kMask:
        return "be bool or uint8";
      case Type::Kind::kAs:
        return "have the dtype of " + contract_.argument(type.argument) + " (" +
               dtype_name(type_of(type)) + ")";
      default:
        return std::string("be ") + dtype_name(type_of(type));
    }
  }

  bool rule_holds(const Rule& rule, const Number& n) const {
    switch (rule.kind) {
      case Rule::Kind::kNumber:
        return !std::isnan(n.real);
      case Rule::Kind::kFinite:
        return std::isfinite(n.real);
      case Rule::Kind::kPositive:
        return std::isfinite(n.real) && n.real > 0;
      case Rule::Kind::kAtLeast:
        return n.whole >= rule.low;
      case Rule::Kind::kAtMost:
        return n.whole <= rule.high;
      default:
        return n.whole >= rule.low && n.whole <= rule.high;
    }
  }

  void rule(const Line& line) const {
    const Argument& a = arguments_[line.argument];
    bool holds = true;
    if (line.rule.kind == Rule::Kind::kOneOf) {
      const std::string_view text(a.text(), size_t(a.size));
      holds = false;
      for (const std::string& word : line.rule.words) holds |= word == text;
    } else {
      for (int64_t i = 0; i < a.size; ++i) {
        holds &= rule_holds(line.rule, element_of(line.argument, i));
      }
    }
    if (!holds) refuse(name_of(line) + " must be " + line.rule.text + ", got " + value_text(a));
  }

  std::string value_text(const Argument& a) const {
    std::string text;
    switch (a.kind) {
      case Argument::Kind::kTensors:
        return shape_text(a.tensors()[0]);
      case Argument::Kind::kText:
        return std::string(a.text(), size_t(a.size));
      case Argument::Kind::kFloats:
        text = list_text(a.floats(), a.size);
        break;
      default:
        text = list_text(a.ints(), a.size);
    }
    return a.is_list ? text : text.substr(1, text.size() - 2);
  }

  std::string message(const Line& line) const {
    std::string text;
    for (size_t i = 0; i < line.texts.size(); ++i) {
      text += line.texts[i];
      if (i >= line.holes.size()) continue;
      const auto& [expression, argument] = line.holes[i];
      text += argument < 0 ? expression.evaluate(*this).text() : value_text(arguments_[argument]);
    }
    return text;
  }

  const Contract& contract_;
  const Argument* arguments_;
  std::string_view name_;  // what messages call the op
  int64_t sizes_[kMostSlots];
  bool too_small_ = false;                 // a size: messages tell the bounds
  uint32_t known_ = 0, known_before_ = 0;  // a bit a name; before the line that is looked at
  bool many_before_ = false;
  const int64_t* many_ = nullptr;
  int64_t many_count_ = 0;
  const TensorFacts* first_ = nullptr;
  const std::string* first_name_ = nullptr;
};

}  // namespace

void Contract::check(const Argument* arguments, Outputs& outputs) const {
  std::string_view name = name_;
  for (const auto& [word, other] : names_) {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const Argument& a = arguments[i];
      if (a.kind == Argument::Kind::kText && word == std::string_view(a.text(), a.size))
        name = other;
    }
  }
  Check check(*this, arguments, slots_.size(), name);
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (arguments_[i].is_size) check.sizes(arguments_[i].name, arguments[i]);
  }
  try {
    for (const Line& line : lines_) check.line(line);
    for (const OutputLine& line : outputs_) {
      if (line.by_values) continue;
      if (!line.repeated) {
        check.output(line, outputs.add());
        continue;
      }
      const int64_t count = line.repeated->evaluate(check).whole;
      for (int64_t i = 0; i < count; ++i) {
        check.name(index_slot_, i);
        check.output(line, outputs.add());
      }
    }
  } catch (const std::overflow_error& error) {
    throw std::runtime_error("detops." + name_ + ": " + error.what());
  }
}

}  // namespace detops
