// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../tensor.h"
#include "expression.h"

// clang-format off
// The contract of every op: its schema, what its arguments must be, and what its outputs are. It is
// read on both sides, by csrc/contract/contract.cpp for calls and by detops/contract.py for fake tensors, so
// that an op is checked alike, in the same words, whoever asks. In the order in which they are
// checked, an op's lines say:
//   name: float [N, C, H >= 1, 4]   The dtype and shape of a tensor, or of each tensor of a list. A
//                                   name stands for the same size wherever it occurs, _ for any, an
//                                   expression for its value; N? may be missing, ... is any number
//                                   of sizes. All tensors are on the device of the first one.
//       float      float32, float64, float16 or bfloat16     discrete   any integer, or bool
//       as x       the dtype of x                            wide x     the same, float32 at least
//       real       float or discrete                       integer    int64, int32, int16, int8, uint8
//       numbers    float or integer                        mask       bool or uint8
//       any        any at all
//   name: at least 1                What a number must be, or each of several: see Rule in
//                                   contract.h. SymInts are sizes, and at most 2^31 - 1.
//   name = expression               A name for what is needed more than once.
//   expression | message            What must hold, and what to say where it does not; {x} is a
//                                   value, or the shape of a tensor.
//   use group                       The lines of a group, which stands before its first use.
//   called name for word            What messages call the op, where its text argument is that word.
//   -> float [N, 4] like x          An output, in the memory format of x. ? is a size that depends on
//                                   values. What comes after `if` must hold, or it has no elements.
// Without such a line, x_forward is called x where there is an x.
// clang-format on
namespace detops {

struct Argument {
  enum class Kind : uint8_t { kNone, kTensors, kInts, kFloats, kFlags, kText };
  Kind kind = Kind::kNone;
  bool is_list = false;
  int64_t size = 0;
  const void* data = nullptr;

  const TensorFacts* tensors() const { return static_cast<const TensorFacts*>(data); }
  const int64_t* ints() const { return static_cast<const int64_t*>(data); }
  const double* floats() const { return static_cast<const double*>(data); }
  const bool* flags() const { return static_cast<const bool*>(data); }
  const char* text() const { return static_cast<const char*>(data); }
};

struct Output {
  static constexpr int64_t kMostDimensions = 8;
  int64_t sizes[kMostDimensions];
  int64_t dim;
  ScalarType dtype;
  bool channels_last;
};

// Of one call; on the stack, since a call may take a microsecond in all.
class Outputs {
 public:
  Output& add() {
    if (count_ == kMost) throw std::length_error("too many outputs");
    return items_[count_++];
  }
  const Output* begin() const { return items_; }
  const Output* end() const { return items_ + count_; }
  int count() const { return count_; }

 private:
  static constexpr int kMost = 16;  // a map per level
  Output items_[kMost];
  int count_ = 0;
};

struct Dimension {
  enum class Kind : uint8_t { kAny, kName, kSize, kMany };
  Kind kind;
  bool optional = false;  // N?
  int64_t least = 0;      // N >= 1
  int slot = -1;          // of a name
  Expression size{};
  std::string text{};
};

struct Shape {
  std::vector<Dimension> dimensions;
  bool many = false, optional = false;
};

// A dtype, or those that may be.
struct Type {
  enum class Kind : uint8_t {
    kFloat,
    kInteger,
    kNumbers,
    kDiscrete,
    kReal,
    kMask,
    kAny,
    kOne,
    kAs,
    kWide
  };
  Kind kind;
  ScalarType one{};
  int argument = -1, other = -1;  // of `as` and `wide`: one of them, or both promoted
};

// What a number must be.
struct Rule {
  enum class Kind : uint8_t { kNumber, kFinite, kPositive, kAtLeast, kAtMost, kWithin, kOneOf };
  Kind kind;
  int64_t low = 0, high = 0;
  std::vector<std::string> words{};
  std::string text{};  // "at least 1"
};

struct Line {
  enum class Kind : uint8_t { kTensor, kRule, kName, kCheck };
  Kind kind;
  int argument = -1, slot = -1;
  bool on_cpu_too = false;
  Type type{};
  Shape shape{};
  Rule rule{};
  Expression expression{};
  // Of a message: text, and between two pieces of it an expression or the shape of an argument.
  std::vector<std::string> texts{};
  std::vector<std::pair<Expression, int>> holes{};
};

struct OutputLine {
  Type type{}, otherwise{};
  Shape shape;
  int like = -1;
  bool by_values = false;            // its size depends on values
  std::optional<Expression> wanted;  // without `else`: empty where not
  bool has_otherwise = false;
  std::optional<Expression> repeated;  // an output for each i below it
};

class Contract {
 public:
  // The contract of an op of a .contract file. Those are read once.
  static const Contract& of(std::string_view op);
  static const std::vector<Contract>& all();
  static const char* text();

  const std::string& op() const { return op_; }      // roi_align_forward
  const std::string& name() const { return name_; }  // roi_align: what callers know it by
  const std::string& schema() const { return schema_; }
  const std::string& argument(size_t i) const { return arguments_[i].name; }
  size_t returns() const { return returns_; }  // those of the schema: the first of the outputs

  // Raises an error that names op and argument; otherwise gives the outputs whose sizes depend on
  // no values.
  void check(const Argument* arguments, Outputs& outputs) const;

 private:
  friend class Reader;
  struct Formal {
    std::string name, type;
    bool is_size;  // SymInt, or several
  };

  std::string op_, name_, schema_;
  std::vector<Formal> arguments_;
  std::vector<std::string> slots_;
  std::vector<Line> lines_;
  std::vector<OutputLine> outputs_;
  int index_slot_ = 0;  // i, of repeated outputs
  size_t returns_ = 1;
  std::vector<std::pair<std::string, std::string>> names_;  // by a word, other names
};

}  // namespace detops
