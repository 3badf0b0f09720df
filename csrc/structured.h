// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <tuple>

#include "contract/contract.h"

// The wrapper around every host function. It unpacks the arguments of a call, validates them
// against the contract, allocates the outputs and calls the function.
namespace detops {

// Type that stores a parameter of a host function during the call.
template <typename P>
struct ArgumentStorage {
  using type = std::decay_t<P>;
};
template <typename T>
struct ArgumentStorage<ArrayRef<T>> {
  using type = std::vector<T>;
};
template <>
struct ArgumentStorage<std::string_view> {
  using type = std::string;
};

// Returns the items of a list and deletes the list.
std::vector<StableIValue> unpack_list(StableIValue value);

// These unpack values from a call and take ownership of them.
template <typename T>
void unpack(StableIValue from, T& value) {
  std::memcpy(&value, &from, sizeof value);
}
inline void unpack(StableIValue from, Tensor& to) {
  to = Tensor(reinterpret_cast<AtenTensorHandle>(from));
}
void unpack(StableIValue from, std::string& to);

template <typename T>
void unpack(StableIValue from, std::optional<T>& to) {
  const std::unique_ptr<StableIValue> inner(reinterpret_cast<StableIValue*>(from));
  if (inner != nullptr) unpack(*inner, to.emplace());
  if constexpr (std::is_same_v<T, Tensor>) {
    if (to && !to->defined()) to.reset();
  }
}

template <typename T>
void unpack(StableIValue from, std::vector<T>& to) {
  for (const StableIValue item : unpack_list(from)) unpack(item, to.emplace_back());
}

// These describe values to a contract. Flags in a list are uint8_t, because std::vector<bool> has
// no array of bool.
template <typename T>
constexpr Argument::Kind kKind = std::is_same_v<T, Tensor>    ? Argument::Kind::kTensors
                                 : std::is_same_v<T, int64_t> ? Argument::Kind::kInts
                                 : std::is_same_v<T, double>  ? Argument::Kind::kFloats
                                                              : Argument::Kind::kFlags;

template <typename T>
Argument argument(const T& value) {
  return {kKind<T>, false, 1, &value};
}
template <typename T>
Argument argument(const std::vector<T>& values) {
  return {kKind<T>, true, int64_t(values.size()), values.data()};
}
inline Argument argument(const std::string& text) {
  return {Argument::Kind::kText, false, int64_t(text.size()), text.data()};
}
template <typename T>
Argument argument(const std::optional<T>& value) {
  return value ? argument(*value) : Argument{};
}

template <typename P>
constexpr bool kIsOutput = std::is_same_v<P, Tensor&> || std::is_same_v<P, std::vector<Tensor>&>;

// Disables autograd for the steps of a host function.
struct NoGradGuard {
  const bool was_enabled = aoti_torch_grad_mode_is_enabled();
  NoGradGuard() { set(false); }
  ~NoGradGuard() { set(true); }
  void set(bool on) const {
    if (was_enabled) aoti_torch_grad_mode_set_enabled(on);
  }
};

// Makes the device of the tensors the current one.
struct DeviceGuard {
#ifdef USE_CUDA
  CUDAGuardHandle handle = nullptr;
  explicit DeviceGuard(const Options& device) {
    DETOPS_STABLE(aoti_torch_create_cuda_guard, device.index, &handle);
  }
  ~DeviceGuard() { aoti_torch_delete_cuda_guard(handle); }
#else
  explicit DeviceGuard(const Options&) {}
#endif
};

Tensor allocate_output(const Output& output, const Options& device);
// Converts an output to its final dtype and releases it to the caller.
StableIValue pack(Tensor& t, const Output& output);

// Rethrows the current exception as an error that begins with the op's name.
[[noreturn]] void rethrow(const Contract& contract);

bool all_empty(const Tensor* outputs, size_t count);

inline StableIValue pack(Tensor& t) { return reinterpret_cast<StableIValue>(t.release()); }
StableIValue pack(std::vector<Tensor>& list);

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
    const NoGradGuard no_grad;
    std::tuple<typename ArgumentStorage<std::tuple_element_t<in, Parameters>>::type...> values;
    (unpack(stack[in], std::get<in>(values)), ...);
    const Argument arguments[] = {argument(std::get<in>(values))...};
    Outputs specs;
    contract.check(arguments, specs);
    const Options device = specs.device;
    const DeviceGuard guard(device);
    if constexpr (kOutputs == 0) {
      std::tuple results(function(std::get<in>(values)...));  // one result or a tuple
      std::apply([&](auto&... item) { ((*stack++ = pack(item)), ...); }, results);
    } else if constexpr ((std::is_same_v<P, std::vector<Tensor>&> || ...)) {
      std::vector<Tensor> outputs;
      outputs.reserve(specs.count);
      for (int i = 0; i < specs.count; ++i) {
        outputs.push_back(allocate_output(specs.items[i], device));
      }
      if (!all_empty(outputs.data(), outputs.size())) function(std::get<in>(values)..., outputs);
      stack[0] = pack(outputs);
    } else {
      Tensor outputs[kOutputs];
      for (size_t i = 0; i < kOutputs; ++i) outputs[i] = allocate_output(specs.items[i], device);
      if (!all_empty(outputs, kOutputs)) function(std::get<in>(values)..., outputs[out]...);
      for (size_t i = 0; i < contract.returns; ++i) {
        stack[i] = pack(outputs[i], specs.items[i]);
      }
    }
  }
};

}  // namespace detops
