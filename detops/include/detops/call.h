// SPDX-License-Identifier: MIT
#pragma once

// Calls ops through PyTorch's dispatcher with C++ types. Only the stable ABI of LibTorch is used: a
// program may be compiled with the headers of one PyTorch version and run with another. If it is
// compiled with TORCH_TARGET_VERSION=0x020a000000000000, it runs with every version from 2.10 on.
#include <dlfcn.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "library.h"

namespace detops {

using torch::stable::Tensor;

namespace detail {

inline void check(AOTITorchError status, const char* function) {
  if (status != 0) throw std::runtime_error(std::string("PyTorch's ") + function + " failed");
}

// Boxes the arguments of a call. The callee releases them.

template <typename T>
StableIValue boxed(const T& number) {
  static_assert(std::is_arithmetic_v<T>);
  StableIValue value = 0;
  std::memcpy(&value, &number, sizeof number);
  return value;
}

inline StableIValue boxed(const Tensor& t) {
  AtenTensorHandle handle = nullptr;
  check(aoti_torch_new_tensor_handle(t.get(), &handle), "aoti_torch_new_tensor_handle");
  return reinterpret_cast<StableIValue>(handle);
}

inline StableIValue boxed(const std::string& text) {
  StringHandle handle = nullptr;
  check(torch_new_string_handle(text.data(), text.size(), &handle), "torch_new_string_handle");
  return reinterpret_cast<StableIValue>(handle);
}

template <typename T>
StableIValue boxed(const std::optional<T>& value) {
  return value ? reinterpret_cast<StableIValue>(new StableIValue(boxed(*value))) : 0;
}

template <typename List>
StableIValue boxed_list(const List& list) {
  StableListHandle handle = nullptr;
  check(torch_new_list_reserve_size(list.size(), &handle), "torch_new_list_reserve_size");
  for (const auto& each : list) {
    check(torch_list_push_back(handle, boxed(each)), "torch_list_push_back");
  }
  return reinterpret_cast<StableIValue>(handle);
}

template <typename T>
StableIValue boxed(const std::vector<T>& list) {
  return boxed_list(list);
}

template <typename T, size_t n>
StableIValue boxed(const std::array<T, n>& list) {
  return boxed_list(list);
}

// Unboxes the results of a call and takes ownership of them.
template <typename Result>
struct Results;

template <>
struct Results<Tensor> {
  static constexpr size_t kCount = 1;
  static Tensor take(const StableIValue* stack) {
    return Tensor(reinterpret_cast<AtenTensorHandle>(stack[0]));
  }
};

template <typename... T>
struct Results<std::tuple<T...>> {
  static constexpr size_t kCount = sizeof...(T);
  static std::tuple<T...> take(const StableIValue* stack) {
    return take(stack, std::index_sequence_for<T...>());
  }
  template <size_t... i>
  static std::tuple<T...> take(const StableIValue* stack, std::index_sequence<i...>) {
    return {Results<T>::take(stack + i)...};
  }
};

template <>
struct Results<std::vector<Tensor>> {
  static constexpr size_t kCount = 1;
  static std::vector<Tensor> take(const StableIValue* stack) {
    const auto list = reinterpret_cast<StableListHandle>(stack[0]);
    size_t size = 0;
    check(torch_list_size(list, &size), "torch_list_size");
    std::vector<Tensor> tensors;
    tensors.reserve(size);
    for (size_t i = 0; i < size; ++i) {
      StableIValue each = 0;
      check(torch_list_get_item(list, i, &each), "torch_list_get_item");
      tensors.emplace_back(reinterpret_cast<AtenTensorHandle>(each));
    }
    check(torch_delete_list(list), "torch_delete_list");
    return tensors;
  }
};

[[noreturn]] inline void fail(const char* op) {
  std::string message = detops_last_error();
  if (message.empty()) {  // PyTorch itself rejected the call; since 2.13 it reports why
    using What = const char* (*)();
    const auto what =
        reinterpret_cast<What>(dlsym(RTLD_DEFAULT, "torch_exception_get_what_without_backtrace"));
    const char* reason = what == nullptr ? nullptr : what();
    message =
        reason == nullptr ? "PyTorch refused the call and wrote why to the standard error" : reason;
    message = std::string(op) + ": " + message;
  }
  throw std::runtime_error(message);
}

template <typename Result, typename... Arguments>
Result call(const char* op, const Arguments&... arguments) {
  constexpr size_t kSize = std::max(sizeof...(Arguments), Results<Result>::kCount);
  std::array<StableIValue, kSize> stack{boxed(arguments)...};
  detops_set_last_error("");
  if (torch_call_dispatcher(op, "", stack.data(), TORCH_ABI_VERSION) != 0) fail(op);
  return Results<Result>::take(stack.data());
}

}  // namespace detail
}  // namespace detops
