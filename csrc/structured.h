// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <tuple>

#include "contract/contract.h"

// The one wrapper around every host function: it takes the arguments of a call, checks them by
// their contract, makes the outputs, and leaves the function alone with what it is for.
namespace detops {

// Which argument of which op.
struct Place {
  const Contract& contract;
  size_t index;
};

// Refuses what no op takes: None where a tensor is due, and tensors without strides.
const TensorFacts& facts_of(const Place& place, const Tensor& t);

// How a parameter of a host function comes out of a call, which hands its values over. A `Tensor&`
// is an output, and so is a `std::vector<Tensor>&`.
template <typename P>
struct Parameter;

inline Tensor tensor_of(StableIValue value) {
  return Tensor(reinterpret_cast<AtenTensorHandle>(value));
}

// The values of a list.
std::vector<StableIValue> list_of(StableIValue value);

template <typename T>
T number_of(StableIValue value) {
  T number;
  std::memcpy(&number, &value, sizeof number);
  return number;
}

template <typename T>
constexpr Argument::Kind kKind = std::is_same_v<T, int64_t>  ? Argument::Kind::kInts
                                 : std::is_same_v<T, double> ? Argument::Kind::kFloats
                                                             : Argument::Kind::kFlags;

template <>
struct Parameter<const Tensor&> {
  Tensor value;
  explicit Parameter(StableIValue from) : value(tensor_of(from)) {}
  Argument argument(const Place& place, std::vector<TensorFacts>&) const {
    return {Argument::Kind::kTensors, false, 1, &facts_of(place, value)};
  }
};

template <>
struct Parameter<const std::optional<Tensor>&> {
  std::optional<Tensor> value;
  explicit Parameter(StableIValue from) {
    const std::unique_ptr<StableIValue> inner(reinterpret_cast<StableIValue*>(from));
    if (inner == nullptr) return;
    Tensor t = tensor_of(*inner);
    if (t.defined()) value = std::move(t);
  }
  Argument argument(const Place& place, std::vector<TensorFacts>&) const {
    if (!value) return {};
    return {Argument::Kind::kTensors, false, 1, &facts_of(place, *value)};
  }
};

template <>
struct Parameter<TensorList> {
  std::vector<Tensor> value;
  explicit Parameter(StableIValue from) {
    for (const StableIValue each : list_of(from)) value.push_back(tensor_of(each));
  }
  Argument argument(const Place& place, std::vector<TensorFacts>& facts) const {
    for (const Tensor& t : value) facts.push_back(facts_of(place, t));
    return {Argument::Kind::kTensors, true, int64_t(value.size()), facts.data()};
  }
};

template <typename T>
struct Parameter {
  T value;
  explicit Parameter(StableIValue from) : value(number_of<T>(from)) {}
  Argument argument(const Place&, std::vector<TensorFacts>&) const {
    return {kKind<T>, false, 1, &value};
  }
};

template <typename T>
struct Parameter<std::optional<T>> {
  std::optional<T> value;
  explicit Parameter(StableIValue from) {
    const std::unique_ptr<StableIValue> inner(reinterpret_cast<StableIValue*>(from));
    if (inner != nullptr) value = number_of<T>(*inner);
  }
  Argument argument(const Place&, std::vector<TensorFacts>&) const {
    if (!value) return {};
    return {kKind<T>, false, 1, &*value};
  }
};

template <typename T>
struct Parameter<ArrayRef<T>> {
  std::vector<T> value;
  explicit Parameter(StableIValue from) {
    for (const StableIValue each : list_of(from)) value.push_back(number_of<T>(each));
  }
  Argument argument(const Place&, std::vector<TensorFacts>&) const {
    return {kKind<T>, true, int64_t(value.size()), value.data()};
  }
};

template <>
struct Parameter<std::array<bool, 5>> {
  std::array<bool, 5> value{};
  int64_t size;  // which a contract compares with 5
  explicit Parameter(StableIValue from) {
    const auto list = list_of(from);
    size = int64_t(list.size());
    for (size_t i = 0; i < std::min(value.size(), list.size()); ++i) value[i] = list[i] & 1;
  }
  Argument argument(const Place&, std::vector<TensorFacts>&) const {
    return {Argument::Kind::kFlags, true, size, value.data()};
  }
};

template <>
struct Parameter<std::string_view> {
  std::string value;
  explicit Parameter(StableIValue from);
  Argument argument(const Place&, std::vector<TensorFacts>&) const {
    return {Argument::Kind::kText, false, int64_t(value.size()), value.data()};
  }
};

template <typename P>
constexpr bool kIsOutput = std::is_same_v<P, Tensor&> || std::is_same_v<P, std::vector<Tensor>&>;

// No gradients of the steps of a host function are recorded.
class NoGrad {
 public:
  NoGrad() : before_(aoti_torch_grad_mode_is_enabled()) {
    if (before_) aoti_torch_grad_mode_set_enabled(false);
  }
  NoGrad(const NoGrad&) = delete;
  ~NoGrad() {
    if (before_) aoti_torch_grad_mode_set_enabled(true);
  }

 private:
  bool before_;
};

// Makes the device of the tensors the current one.
class DeviceGuard {
 public:
  explicit DeviceGuard(const Options& of) {
#ifdef USE_CUDA
    check_status(aoti_torch_create_cuda_guard(of.index, &guard_), "device guard");
  }
  DeviceGuard(const DeviceGuard&) = delete;
  ~DeviceGuard() { aoti_torch_delete_cuda_guard(guard_); }

 private:
  CUDAGuardHandle guard_ = nullptr;
#else
    (void)of;
  }
#endif
};

Tensor make(const Output& output, const Options& device);

// The error that is being handled, with the op's name where it does not tell it.
[[noreturn]] void rethrow(const Contract& contract);

bool is_empty(const Tensor* outputs, size_t count);

// Of the first tensor.
Options device_of(const Argument* arguments, size_t count);

inline StableIValue given(Tensor& t) { return reinterpret_cast<StableIValue>(t.release()); }
StableIValue given(std::vector<Tensor>& list);

template <const char* op, auto function>
struct Structured;

template <const char* op, typename Result, typename... P, Result (*function)(P...)>
struct Structured<op, function> {
  static constexpr size_t kOutputs = (size_t(kIsOutput<P>) + ... + 0);
  static constexpr size_t kInputs = sizeof...(P) - kOutputs;

  static void call(StableIValue* stack, uint64_t, uint64_t) {
    static const Contract& contract = Contract::of(op);
    try {
      run(contract, stack, std::make_index_sequence<kInputs>(),
          std::make_index_sequence<kOutputs>());
    } catch (...) {
      rethrow(contract);
    }
  }

 private:
  using Parameters = std::tuple<P...>;

  template <size_t... in, size_t... out>
  static void run(const Contract& contract, StableIValue* stack, std::index_sequence<in...>,
                  std::index_sequence<out...>) {
    const NoGrad no_grad;
    std::tuple<Parameter<std::tuple_element_t<in, Parameters>>...> values{
        Parameter<std::tuple_element_t<in, Parameters>>(stack[in])...};
    std::vector<TensorFacts> facts[kInputs];  // of lists
    const Argument arguments[] = {std::get<in>(values).argument(Place{contract, in}, facts[in])...};
    Outputs described;
    contract.check(arguments, described);
    const Options device = device_of(arguments, kInputs);
    const DeviceGuard guard(device);
    if constexpr (kOutputs == 0) {
      give(stack, function(std::get<in>(values).value...));
    } else if constexpr ((std::is_same_v<P, std::vector<Tensor>&> || ...)) {
      std::vector<Tensor> outputs;
      for (const Output& output : described) outputs.push_back(make(output, device));
      if (!is_empty(outputs.data(), outputs.size()))
        function(std::get<in>(values).value..., outputs);
      stack[0] = given(outputs);
    } else {
      Tensor outputs[kOutputs];
      for (size_t i = 0; i < kOutputs; ++i) outputs[i] = make(described.begin()[i], device);
      if (!is_empty(outputs, kOutputs)) function(std::get<in>(values).value..., outputs[out]...);
      for (size_t i = 0; i < contract.returns(); ++i) stack[i] = given(outputs[i]);
    }
  }

  static void give(StableIValue* stack, Tensor result) { stack[0] = given(result); }
  template <typename... T>
  static void give(StableIValue* stack, std::tuple<T...> results) {
    std::apply([&](auto&... each) { ((*stack++ = given(each)), ...); }, results);
  }
};

}  // namespace detops
