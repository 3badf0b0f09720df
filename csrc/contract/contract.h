// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../tensor.h"
#include "expression.h"

// clang-format off
// The contract of every op: its schema, what its arguments must be, and what its outputs are. It is
// read on both sides, by csrc/contract/reader.cpp for calls and by detops/contract.py for fake tensors, so
// that an op is checked alike, in the same words, whoever asks. Ops that differ in their names alone
// share a schema: a, b(Tensor x) -> Tensor. The lines below one schema or several say, in the order in
// which they are checked, where the names before a colon may be several:
//   name: float [N, C, H >= 1, 4]   The dtype and shape of a tensor, or of each tensor of a list. A
//                                   name stands for the same size wherever it occurs, _ for any, an
//                                   expression for its value; N? may be missing, ... is any number
//                                   of sizes. A size with a bound is at most 2^31 - 1: the sides of
//                                   maps. All tensors are on the device of the first one.
//       float      float32, float64, float16 or bfloat16     discrete   any integer, or bool
//       as x       the dtype of x                            wide x     the same, float32 at least
//       real       float or discrete                       integer    int64, int32, int16, int8, uint8
//       numbers    float or integer                        mask       bool or uint8
//       any        any at all
//   name: at least 1                What a number must be, or each of several: a number, finite,
//                                   positive, at least 1, at most 2 or in [1, 2]; of a text, its
//                                   words: iou or iof. SymInts are sizes, and at most 2^31 - 1.
//   name = expression               A name for what is needed more than once.
//   expression | message            What must hold, and what to say where it does not; {x} is a
//                                   value, or the shape of a tensor.
//   limit expression | message      The same of a bound on sizes. A size that is a symbol has none, or an
//                                   exported program would have it, too.
//   use a, b                        What groups, or other ops, ask: those stand before. Of what is no
//                                   argument of the op nothing is asked.
//   called name for a, b            What messages call the op, where its text argument is one of these.
//   -> float [N, 4] like x          An output, in the memory format of x. ? is a size that depends on
//                                   values. What comes after `if` must hold, or it has no elements.
//   -> as x in wide y [N, 4]        The host function gets it in another dtype, to be rounded then.
// Without such a line, x_forward is called x where there is an x.
// clang-format on
namespace detops {

struct Output {
  static constexpr int64_t kMostDimensions = 8;
  static constexpr int64_t kMostBytes = 16;  // of an element of any dtype
  int64_t sizes[kMostDimensions];
  int64_t dim;
  ScalarType dtype, computed;  // in which a host function gets it
  bool channels_last;
};

// Of one call; on the stack, since a call may take a microsecond in all.
struct Outputs {
  static constexpr int kMost = 16;  // a map per level: a contract refuses more
  Output items[kMost];
  int count = 0;
  Options device{kFloat, kCPU, -1};  // of the first tensor
};

struct Dimension {
  static constexpr int64_t kMost = 2147483647;  // also of a SymInt
  std::string text;
  bool many = false;      // ...
  bool optional = false;  // N?
  int64_t least = 0;      // N >= 1; then it is at most kMost, too
  int slot = -1;          // of a name
  Expression size{};      // of what is neither a name nor any size
};

struct Shape {
  std::vector<Dimension> dimensions{};
  bool many = false, optional = false;
  bool by_values = false;  // a size of an output depends on values
};

// Dtypes that have a name in contracts, and what messages say of them.
struct TypeClass {
  std::string_view name;
  bool (*has)(ScalarType);
  const char* text;
};

struct Type {
  enum class Kind : uint8_t { kClass, kOne, kAs, kWide };
  Kind kind;
  const TypeClass* of = nullptr;
  ScalarType one{};
  int argument = -1, other = -1;  // of `as` and `wide`: one of them, or both promoted
};

// What must hold, and what to say where it does not; or what a slot is to be; or what a tensor
// must.
struct Line {
  Expression expression{};
  Message message{};
  int slot = -1;
  int argument = -1;
  Type type{};
  Shape shape{};
  bool on_cpu_too = false;
  bool is_limit = false;  // a product beyond 64 bits is beyond it, too
};

struct OutputLine {
  Type type;
  std::optional<Type> computed{};
  Shape shape{};
  int like = -1;
  Expression wanted{};
  std::optional<Type> otherwise{};  // where it is not wanted; without one, it is empty there
  Expression repeated{};            // an output for each i below it
};

struct Contract {
  std::string op;    // roi_align_forward
  std::string name;  // roi_align: what callers know it by
  std::string schema;
  size_t returns;  // those of the schema: the first of the outputs
  std::vector<std::string> arguments{};
  std::vector<Line> lines{};
  std::vector<OutputLine> outputs{};
  int index_slot = 0;                                        // i, of repeated outputs
  std::vector<std::pair<std::string, std::string>> names{};  // by a word, other names

  // The contract of an op of a .contract file. Those are read once.
  static const Contract& of(std::string_view op);
  static const std::vector<Contract>& all();
  static const char* text();

  // Raises an error that names op and argument; otherwise gives the outputs whose sizes depend on
  // no values.
  void check(const Argument* values, Outputs& made) const;
};

}  // namespace detops
