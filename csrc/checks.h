// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/ATen.h>

// Messages name the public function, the argument, what was expected and what came.
namespace detops::meta {

using at::Tensor;

#define DETOPS_CHECK(cond, op, ...) TORCH_CHECK(cond, "detops.", op, ": ", __VA_ARGS__)

inline void check_floating(const char* op, const char* name, const Tensor& t) {
  DETOPS_CHECK(at::isFloatingType(t.scalar_type()), op, name,
               " must be float32, float64, float16 or bfloat16, got ", t.scalar_type());
}

inline void check_same_device(const char* op, const char* name, const Tensor& t,
                              const char* other_name, const Tensor& other) {
  DETOPS_CHECK(t.device() == other.device(), op, name, " must be on the device of ", other_name,
               " (", other.device(), "), got ", t.device());
}

inline void check_same_type(const char* op, const char* name, const Tensor& t,
                            const char* other_name, const Tensor& other) {
  DETOPS_CHECK(t.scalar_type() == other.scalar_type(), op, name, " must have the dtype of ",
               other_name, " (", other.scalar_type(), "), got ", t.scalar_type());
}

}  // namespace detops::meta
