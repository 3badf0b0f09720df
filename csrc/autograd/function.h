// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include "../ops.h"

// Derivatives in C++. A torch::autograd::Function costs 10 us forward and 31 us with backward
// around a tiny op, a Python one 18 and 35; in return, torch.func's transforms refuse these ops.
namespace detops::autograd {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// A raw op by its name, which is that of its function in every backend. Looked up once.
#define DETOPS_OP(name)                                                 \
  [] {                                                                  \
    static const auto op = c10::Dispatcher::singleton()                 \
                               .findSchemaOrThrow("detops::" #name, "") \
                               .typed<decltype(cpu::name)>();           \
    return op;                                                          \
  }()

// Skips the entry of raw ops that reports a missing derivative.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

// In a backward pass: below autograd, unless that pass is recorded itself; then the raw op reports
// that it has no derivative.
class Once {
 public:
  Once() {
    if (!at::GradMode::is_enabled()) below_.emplace();
  }

 private:
  std::optional<BelowAutograd> below_;
};

// Is there a derivative to record? Tangents of forward mode count: recording reports that they are
// not supported, whereas a raw op below autograd would lose them.
template <typename... Tensors>
bool recorded(const Tensors&... inputs) {
  return (at::GradMode::is_enabled() && (inputs.requires_grad() || ...)) ||
         (inputs._fw_grad(/*level=*/0).defined() || ...);
}

}  // namespace detops::autograd
