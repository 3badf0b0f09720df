// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/ATen.h>
#include <c10/core/CompileTimeFunctionPointer.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <new>
#include <stdexcept>

// What surrounds every host function that is registered, on every backend, written once.
namespace detops {

using at::Tensor;

// Refuses what no op takes: None where a tensor is due, and sparse, mkldnn, quantized and nested
// tensors. `index` is that of the op's argument.
void check_dense(const char* op, size_t index, const Tensor& t);

inline void check_argument(const char* op, size_t index, const Tensor& t) {
  check_dense(op, index, t);
}
inline void check_argument(const char* op, size_t index, const std::optional<Tensor>& t) {
  if (t) check_dense(op, index, *t);
}
inline void check_argument(const char* op, size_t index, at::TensorList list) {
  for (const Tensor& t : list) check_dense(op, index, t);
}
template <typename T>
void check_argument(const char*, size_t, const T&) {}

// An error that comes out of ATen does not say which op it was: it is told to.
void name_op(const char* op, c10::Error& error);

[[noreturn]] void report_no_memory(const char* op);

// Under autocast the ATen calls of a host function, of a backward pass above all, would compute in
// another dtype than its kernels; so they do not see it.
template <const char* op, auto function>
struct Guarded;

template <const char* op, typename Result, typename... Arguments, Result (*function)(Arguments...)>
struct Guarded<op, function> {
  static Result call(Arguments... arguments) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    try {
      size_t index = 0;
      (check_argument(op, index++, arguments), ...);
      return function(std::forward<Arguments>(arguments)...);
    } catch (c10::Error& error) {
      name_op(op, error);
      throw;
    } catch (const std::bad_alloc&) {
      report_no_memory(op);
    } catch (const std::length_error&) {  // of a std::vector
      report_no_memory(op);
    }
  }
};

// For m.impl.
template <const char* op, auto function>
auto guarded() {
  using Call = Guarded<op, function>;
  return c10::CompileTimeFunctionPointer<decltype(Call::call), Call::call>();
}

}  // namespace detops
