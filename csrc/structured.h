// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <new>
#include <stdexcept>
#include <tuple>

#include "contract.h"

// The one wrapper around every host function: it takes the arguments of a call, checks them by
// their contract, makes the outputs, and leaves the function alone with what it is for.
namespace detops {

using at::Tensor;
using Stack = std::vector<c10::IValue>;

// How a parameter of a host function comes out of a call. A `Tensor&` is an output, and so is a
// `std::vector<Tensor>&`.
template <typename P>
struct Parameter;

// A contract's view of tensors, which live as long as a call.
struct Facts {
  std::vector<TensorFacts> many;
  TensorFacts one;
};

// Which argument of which op.
struct Place {
  const Contract& contract;
  size_t index;
};

// Refuses what no op takes: None where a tensor is due, and sparse, mkldnn, quantized and nested
// tensors.
TensorFacts facts_of(const Place& place, const Tensor& t);

template <>
struct Parameter<const Tensor&> {
  const Tensor& value;
  explicit Parameter(const c10::IValue& from) : value(from.toTensor()) {}
  Argument argument(const Place& place, Facts& facts) const {
    facts.one = facts_of(place, value);
    Argument a{Argument::Kind::kTensors, false, 1, {}};
    a.tensors = &facts.one;
    return a;
  }
};

template <>
struct Parameter<const std::optional<Tensor>&> {
  std::optional<Tensor> value;
  explicit Parameter(const c10::IValue& from) : value(from.toOptional<Tensor>()) {}
  Argument argument(const Place& place, Facts& facts) const {
    Argument a{};
    if (!value) return a;
    facts.one = facts_of(place, *value);
    a.kind = Argument::Kind::kTensors;
    a.size = 1;
    a.tensors = &facts.one;
    return a;
  }
};

template <>
struct Parameter<at::TensorList> {
  std::vector<Tensor> value;
  explicit Parameter(const c10::IValue& from) : value(from.toTensorVector()) {}
  Argument argument(const Place& place, Facts& facts) const {
    for (const Tensor& t : value) facts.many.push_back(facts_of(place, t));
    Argument a{Argument::Kind::kTensors, true, int64_t(value.size()), {}};
    a.tensors = facts.many.data();
    return a;
  }
};

template <>
struct Parameter<int64_t> {
  int64_t value;
  explicit Parameter(const c10::IValue& from) : value(from.toInt()) {}
  Argument argument(const Place&, Facts&) const {
    Argument a{Argument::Kind::kInts, false, 1, {}};
    a.ints = &value;
    return a;
  }
};

template <>
struct Parameter<double> {
  double value;
  explicit Parameter(const c10::IValue& from) : value(from.toDouble()) {}
  Argument argument(const Place&, Facts&) const {
    Argument a{Argument::Kind::kFloats, false, 1, {}};
    a.floats = &value;
    return a;
  }
};

template <>
struct Parameter<bool> {
  bool value;
  explicit Parameter(const c10::IValue& from) : value(from.toBool()) {}
  Argument argument(const Place&, Facts&) const {
    Argument a{Argument::Kind::kFlags, false, 1, {}};
    a.flags = &value;
    return a;
  }
};

template <>
struct Parameter<std::string_view> {
  std::string_view value;
  explicit Parameter(const c10::IValue& from) : value(from.toStringView()) {}
  Argument argument(const Place&, Facts&) const {
    Argument a{Argument::Kind::kText, false, int64_t(value.size()), {}};
    a.text = value.data();
    return a;
  }
};

template <>
struct Parameter<at::IntArrayRef> {
  std::vector<int64_t> value;
  explicit Parameter(const c10::IValue& from) : value(from.toIntVector()) {}
  Argument argument(const Place&, Facts&) const {
    Argument a{Argument::Kind::kInts, true, int64_t(value.size()), {}};
    a.ints = value.data();
    return a;
  }
};

template <>
struct Parameter<at::ArrayRef<double>> {
  std::vector<double> value;
  explicit Parameter(const c10::IValue& from) : value(from.toDoubleVector()) {}
  Argument argument(const Place&, Facts&) const {
    Argument a{Argument::Kind::kFloats, true, int64_t(value.size()), {}};
    a.floats = value.data();
    return a;
  }
};

template <>
struct Parameter<std::array<bool, 5>> {
  std::array<bool, 5> value{};
  int64_t size;  // which a contract compares with 5
  explicit Parameter(const c10::IValue& from) {
    const auto list = from.toBoolList();
    size = int64_t(list.size());
    for (int64_t i = 0; i < std::min<int64_t>(5, size); ++i) value[i] = list[i];
  }
  Argument argument(const Place&, Facts&) const {
    Argument a{Argument::Kind::kFlags, true, size, {}};
    a.flags = value.data();
    return a;
  }
};

template <typename P>
constexpr bool kIsOutput = std::is_same_v<P, Tensor&> || std::is_same_v<P, std::vector<Tensor>&>;

Tensor empty(const Output& output, const c10::Device& device);

// The error that is being handled, with the op's name where it does not tell it.
[[noreturn]] void rethrow(const Contract& contract);

bool is_empty(const std::vector<Tensor>& outputs);

template <const char* op, auto function>
struct Structured;

template <const char* op, typename Result, typename... P, Result (*function)(P...)>
struct Structured<op, function> {
  static constexpr size_t kOutputs = (size_t(kIsOutput<P>) + ... + 0);
  static constexpr size_t kInputs = sizeof...(P) - kOutputs;

  static void call(const c10::OperatorHandle&, Stack* stack) {
    static const Contract& contract = Contract::of(op);
    try {
      run(contract, *stack, std::make_index_sequence<kInputs>(),
          std::make_index_sequence<kOutputs>());
    } catch (...) {
      rethrow(contract);
    }
  }

 private:
  using Parameters = std::tuple<P...>;

  template <size_t... in, size_t... out>
  static void run(const Contract& contract, Stack& stack, std::index_sequence<in...>,
                  std::index_sequence<out...>) {
    // Under autocast the ATen calls of a host function would compute in another dtype.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const size_t base = stack.size() - kInputs;
    std::tuple<Parameter<std::tuple_element_t<in, Parameters>>...> values{
        Parameter<std::tuple_element_t<in, Parameters>>(stack[base + in])...};
    Facts facts[kInputs];
    const Argument arguments[] = {std::get<in>(values).argument(Place{contract, in}, facts[in])...};
    std::vector<Output> described;
    contract.check(arguments, described);
    const c10::Device device = first_device(arguments);
    const c10::OptionalDeviceGuard guard(device);
    std::vector<Tensor> outputs;
    outputs.reserve(described.size());
    for (const Output& output : described) outputs.push_back(empty(output, device));
    if constexpr (kOutputs == 0) {
      push(stack, function(std::get<in>(values).value...));
    } else if constexpr ((std::is_same_v<P, std::vector<Tensor>&> || ...)) {
      if (!is_empty(outputs)) function(std::get<in>(values).value..., outputs);
      c10::List<Tensor> list;
      for (Tensor& t : outputs) list.push_back(std::move(t));
      stack.resize(base);
      stack.emplace_back(std::move(list));
    } else {
      if (!is_empty(outputs)) function(std::get<in>(values).value..., outputs[out]...);
      stack.resize(base);
      const size_t returned = contract.returns();
      for (size_t i = 0; i < returned; ++i) stack.emplace_back(std::move(outputs[i]));
    }
  }

  static c10::Device first_device(const Argument (&arguments)[kInputs]) {
    for (const Argument& a : arguments) {
      if (a.kind != Argument::Kind::kTensors || a.size == 0) continue;
      const auto type = static_cast<c10::DeviceType>(a.tensors[0].device);
      return {type, static_cast<c10::DeviceIndex>(a.tensors[0].index)};
    }
    return c10::kCPU;
  }

  static void push(Stack& stack, Tensor result) {
    stack.resize(stack.size() - kInputs);
    stack.emplace_back(std::move(result));
  }
  template <typename... T>
  static void push(Stack& stack, std::tuple<T...> result) {
    stack.resize(stack.size() - kInputs);
    std::apply([&](auto&... each) { (stack.emplace_back(std::move(each)), ...); }, result);
  }
};

}  // namespace detops
