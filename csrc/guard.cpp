// SPDX-License-Identifier: MIT
#include "guard.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace detops {
namespace {

std::string name_of(const char* op, size_t index) {
  const auto handle =
      c10::Dispatcher::singleton().findSchema({std::string("detops::") + op, std::string()});
  return handle ? handle->schema().arguments().at(index).name() : "an argument";
}

}  // namespace

void check_dense(const char* op, size_t index, const Tensor& t) {
  TORCH_CHECK(t.defined(), "detops.", op, ": ", name_of(op, index), " must be a tensor, got None");
  TORCH_CHECK(t.layout() == at::kStrided, "detops.", op, ": ", name_of(op, index),
              " must be strided, got ", t.layout());
  TORCH_CHECK(!t.is_nested() && !at::isQIntType(t.scalar_type()), "detops.", op, ": ",
              name_of(op, index), " must not be ", t.is_nested() ? "nested" : "quantized");
}

void name_op(const char* op, c10::Error& error) {
  if (error.msg().find("detops") == std::string::npos) {
    error.add_context(std::string("in detops.") + op);
  }
}

void report_no_memory(const char* op) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "detops.", op,
                   ": not enough memory for what lies between the input and the result");
}

}  // namespace detops
