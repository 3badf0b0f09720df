// SPDX-License-Identifier: MIT
#include "contract.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>

namespace detops {
namespace {

constexpr int64_t kMissing = INT64_MIN;  // of a dimension that need not be there

std::string sizes_text(const int64_t* sizes, int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text;
}

std::string shape_text(const TensorMetadata& t) { return "[" + sizes_text(t.sizes, t.dim) + "]"; }

std::string device_text(const TensorMetadata& t) {
  constexpr const char* kNames[] = {"cpu", "cuda"};
  const std::string name =
      t.device < 2 ? kNames[t.device] : "device type " + std::to_string(t.device);
  return t.index < 0 ? name : name + ":" + std::to_string(t.index);
}

// One call.
class Check : Scope {
 public:
  Check(const Contract& contract, const Argument* arguments)
      : Scope{arguments, {}}, contract_(contract), name_(contract.name) {}

  void run(Outputs& made) {
    // What no op takes: None where a tensor is due, and tensors without strides.
    bool found = false;
    for (size_t i = 0; i < contract_.arguments.size(); ++i) {
      const Argument& a = arguments[i];
      for (int64_t k = 0; a.kind == Argument::Kind::kTensors && k < a.size; ++k) {
        const TensorMetadata& t = a.tensor(k);
        if (t.strides == nullptr) {
          refuse(contract_.arguments[i], " must be ",
                 t.dim < 0 ? "strided, got another layout" : "a tensor, got None");
        }
        if (!found) made.device = t;
        found = true;
      }
    }
    for (const auto& [word, other] : contract_.names) {
      for (size_t i = 0; i < contract_.arguments.size(); ++i) {
        if (arguments[i].kind == Argument::Kind::kText && arguments[i].text() == word)
          name_ = other;
      }
    }
    for (const Line& each : contract_.lines) line(each);
    for (const OutputLine& each : contract_.outputs) {
      if (each.shape.by_values) continue;
      const int64_t count = each.repeated ? each.repeated(*this).whole : 1;
      for (int64_t i = 0; i < count; ++i) {
        if (each.repeated) name(contract_.index_slot, i);
        if (made.count == Outputs::kMost) throw std::length_error("too many outputs");
        output(each, made.items[made.count++]);
      }
    }
  }

 private:
  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... what) const {
    check(false, "detops.", name_, ": ", what...);
    __builtin_unreachable();
  }

  bool holds(const Expression& condition) const { return condition(*this).real != 0; }

  bool holds(const Line& line) const {
    try {
      return holds(line.expression);
    } catch (const std::overflow_error&) {
      if (!line.is_limit) throw;
      return false;
    }
  }

  void line(const Line& line) {
    if (line.message) {
      if (!holds(line)) refuse(line.message(*this));
    } else if (line.slot >= 0) {
      name(line.slot, line.expression(*this).whole);
    } else {
      const Argument& a = arguments[line.argument];
      for (int64_t i = 0; i < a.size; ++i) tensor(line, a.tensor(i));
    }
  }

  void name(int slot, int64_t size) {
    sizes[slot] = size;
    known_ |= uint32_t(1) << slot;
  }

  void output(const OutputLine& line, Output& to) const {
    const bool wanted = !line.wanted || holds(line.wanted);
    const ScalarType type = type_of(wanted || !line.otherwise ? line.type : *line.otherwise);
    to = {{}, 0, type, line.computed ? type_of(*line.computed) : type, false};
    if (!wanted && !line.otherwise) {
      to.dim = 1;
      return;
    }
    const auto add = [&](int64_t size) {
      if (to.dim == Output::kMostDimensions) {
        refuse("a result must have at most ", Output::kMostDimensions, " dimensions");
      }
      to.sizes[to.dim++] = size;
    };
    for (const Dimension& d : line.shape.dimensions) {
      if (d.many) {
        std::for_each_n(many_, many_count_, add);
      } else if (d.slot < 0) {
        add(d.size(*this).whole);
      } else if (sizes[d.slot] != kMissing) {
        add(sizes[d.slot]);
      }
    }
    int64_t bytes = Output::kMostBytes;
    for (int64_t d = 0; d < to.dim; ++d) {
      if (__builtin_mul_overflow(bytes, std::max<int64_t>(1, to.sizes[d]), &bytes)) {
        refuse("a result of [", sizes_text(to.sizes, to.dim), "] is too large");
      }
    }
    if (line.like >= 0) to.channels_last = is_channels_last(arguments[line.like].tensor());
  }

  void tensor(const Line& line, const TensorMetadata& t) {
    const std::string& name = contract_.arguments[line.argument];
    if (!shape_holds(line.shape, t)) {
      refuse(name, " must be ", expected(line.shape), ", got ", shape_text(t));
    }
    const Type& type = line.type;
    if (type.kind == Type::Kind::kClass ? !type.of->has(t.type) : t.type != type_of(type)) {
      refuse(name, " must ", type_text(type), ", got ", dtype_name(t.type));
    }
    const ScalarType shared = arguments[line.argument].tensor().type;
    if (t.type != shared) {
      refuse(name, " must share one dtype (", dtype_name(shared), "), got ", dtype_name(t.type));
    }
    if (first_ == nullptr) {
      first_ = &t;
      first_name_ = &name;
    } else if ((t.device != first_->device || t.index != first_->index) &&
               !(line.on_cpu_too && t.device == kCPU)) {
      refuse(name, " must be on the device of ", *first_name_, " (", device_text(*first_), ")",
             line.on_cpu_too ? " or on the CPU" : "", ", got ", device_text(t));
    }
  }

  bool shape_holds(const Shape& shape, const TensorMetadata& t) {
    const int64_t written = int64_t(shape.dimensions.size()), fixed = written - shape.many;
    const bool missing = shape.optional && t.dim == fixed - 1;
    known_before_ = known_;
    many_before_ = many_ != nullptr;
    if (shape.many ? t.dim < fixed : t.dim != fixed && !missing) return false;
    int64_t at = 0;
    for (const Dimension& d : shape.dimensions) {
      if (d.many) {
        const int64_t count = t.dim - fixed;
        if (many_ == nullptr) {
          many_ = t.sizes + at;
          many_count_ = count;
        } else if (!std::equal(many_, many_ + many_count_, t.sizes + at, t.sizes + at + count)) {
          return false;
        }
        at += count;
        continue;
      }
      const int64_t size = d.optional && missing ? kMissing : t.sizes[at++];
      if (d.least > 0 && size != kMissing) {
        too_small_ = size < d.least;
        too_large_ = size > Dimension::kMost;
        if (too_small_ || too_large_) return false;
      }
      if (d.slot < 0) {
        if (d.size && size != kMissing && size != d.size(*this).whole) return false;
      } else if (!(known_ >> d.slot & 1)) {
        name(d.slot, size);
      } else if (size != sizes[d.slot]) {
        return false;
      }
    }
    return true;
  }

  // The shape with what is known of it as numbers.
  std::string expected(const Shape& shape) const {
    const auto with = [&](bool all) {
      std::string text;
      for (const Dimension& d : shape.dimensions) {
        if (d.optional && !all) continue;
        std::string size = d.text;
        if (too_small_ && d.least > 0) size += " >= " + std::to_string(d.least);
        if (too_large_ && d.least > 0) size += " <= " + std::to_string(Dimension::kMost);
        if (d.slot >= 0 && (known_before_ >> d.slot & 1)) {
          if (sizes[d.slot] == kMissing) continue;
          size = std::to_string(sizes[d.slot]);
        } else if (d.size) {
          size = d.size(*this).text();
        } else if (d.many && many_before_) {
          size = sizes_text(many_, many_count_);
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
    const bool given = type.argument >= 0 && arguments[type.argument].given();
    ScalarType found = arguments[given ? type.argument : 0].tensor().type;
    if (type.other >= 0) found = promote_types(found, arguments[type.other].tensor().type);
    return type.kind == Type::Kind::kWide ? compute_type(found) : found;
  }

  std::string type_text(const Type& type) const {
    if (type.kind == Type::Kind::kClass) return std::string("be ") + type.of->text;
    const std::string name = dtype_name(type_of(type));
    if (type.kind != Type::Kind::kAs) return "be " + name;
    return "have the dtype of " + contract_.arguments[type.argument] + " (" + name + ")";
  }

  const Contract& contract_;
  std::string_view name_;                       // what messages call the op
  bool too_small_ = false, too_large_ = false;  // a size: messages tell the bounds
  uint32_t known_ = 0, known_before_ = 0;       // a bit a name; before the line that is looked at
  bool many_before_ = false;
  const int64_t* many_ = nullptr;
  int64_t many_count_ = 0;
  const TensorMetadata* first_ = nullptr;
  const std::string* first_name_ = nullptr;
};

constexpr int64_t kMostCharacters = 80;  // of a value in a message

// As much of a text as a message has room for, without a NUL, where C ends one.
std::string cut(std::string_view text) {
  std::string shown;
  int64_t count = 0;
  for (const char c : text) {
    count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // UTF-8's other bytes are in between
    if (count > kMostCharacters) return shown + "...";
    shown += c == 0 ? "\\0" : std::string(1, c);
  }
  return shown;
}

}  // namespace

std::string Argument::shown() const {
  if (kind == Kind::kTensors) return cut(shape_text(tensor()));
  if (kind == Kind::kText) return cut(text());
  std::string all;
  for (int64_t i = 0; i < std::min(size, kMostCharacters); ++i) {
    all += (i ? ", " : "") + number(i).text();
  }
  return cut(is_list ? "[" + all + "]" : all);
}

void Contract::check(const Argument* values, Outputs& made) const {
  Check(*this, values).run(made);
}

}  // namespace detops
