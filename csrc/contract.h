// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtype.h"
#include "expression.h"

// The contracts of ops.contract: checks of an op's arguments, and what its outputs are.
namespace detops {

// What a contract looks at in a tensor.
struct TensorFacts {
  const int64_t *sizes, *strides;
  int64_t dim;
  ScalarType dtype;
  int device;  // its type, as PyTorch numbers them
  int index;   // of the device
};

struct Argument {
  enum class Kind : uint8_t { kNone, kTensors, kInts, kFloats, kFlags, kText };
  Kind kind = Kind::kNone;
  bool is_list = false;
  int64_t size = 0;
  union {
    const TensorFacts* tensors;
    const int64_t* ints;
    const double* floats;
    const bool* flags;
    const char* text;
  };
};

struct Output {
  static constexpr int64_t kMostDimensions = 8;
  int64_t sizes[kMostDimensions];
  int64_t dim;
  ScalarType dtype;
  bool channels_last;
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
  // The contract of an op of ops.contract. Those are read once.
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
  void check(const Argument* arguments, std::vector<Output>& outputs) const;

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

// Whether a tensor of these strides counts as channels_last: PyTorch's rule.
bool is_channels_last(const TensorFacts& t);

}  // namespace detops
