// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/ATen.h>
#include <ATen/TensorUtils.h>

#include <cstdint>

// Messages name the public function, the argument, what was expected and what came.
namespace detops::meta {

using at::Tensor;

#define DETOPS_CHECK(cond, op, ...) TORCH_CHECK(cond, "detops.", op, ": ", __VA_ARGS__)

// What is taken is a list: ATen counts float8 and more among the floating types.
inline bool is_float(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
}

// To compute with.
inline bool is_integer(at::ScalarType type) {
  return type == at::kByte || type == at::kChar || type == at::kShort || type == at::kInt ||
         type == at::kLong;
}

// To compare with one another, or with zero: bool, and any integer.
inline bool is_discrete(at::ScalarType type) {
  return is_integer(type) || type == at::kBool || type == at::kUInt16 || type == at::kUInt32 ||
         type == at::kUInt64;
}

inline void check_floating(const char* op, const char* name, const Tensor& t) {
  DETOPS_CHECK(is_float(t.scalar_type()), op, name,
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

// [N, columns], floating.
void check_rows(const char* op, const char* name, const Tensor& t, int64_t columns);

void check_sizes(const char* op, const char* name, const Tensor& t, c10::SymIntArrayRef expected);

// Sizes that are given as numbers, so that products of two do not leave 64 bits. Those of tensors
// need no bound: their memory is one.
constexpr int64_t kMaxSize = INT32_MAX;

// Symbols are not asked: a bound would become a guard, or a limit of an exported program.
inline void check_size(const char* op, const char* name, const c10::SymInt& size) {
  const auto number = size.maybe_as_int();
  DETOPS_CHECK(!number || *number <= kMaxSize, op, name, " must be at most ", kMaxSize, ", got ",
               *number);
}

void check_same_length(const char* op, const char* name, const Tensor& t, const char* other_name,
                       const Tensor& other);

// [K, columns], a batch index first.
void check_rois(const char* op, const Tensor& rois, const Tensor& other, const char* other_name,
                int64_t columns = 5);

// Far above any use; it bounds the time a RoI can take.
constexpr int64_t kMaxSamplingRatio = 4096;

void check_pooling(const char* op, const c10::SymInt& pooled_height,
                   const c10::SymInt& pooled_width, int64_t sampling_ratio,
                   int64_t max_sampling_ratio = kMaxSamplingRatio);

void check_scale(const char* op, double spatial_scale);

void check_map(const char* op, const char* name, const Tensor& t);

void check_pooled_grad(const char* op, const Tensor& grad, const Tensor& rois,
                       const c10::SymInt& channels, const c10::SymInt& pooled_height,
                       const c10::SymInt& pooled_width, int64_t roi_columns = 5);

// The size of a map that a backward pass is to make.
void check_map_size(const char* op, const c10::SymInt& n, const c10::SymInt& c,
                    const c10::SymInt& h, const c10::SymInt& w);

Tensor empty_map(const Tensor& like, const c10::SymInt& n, const c10::SymInt& c,
                 const c10::SymInt& h, const c10::SymInt& w);

// Floating, of the size of `like` and on its device.
void check_like(const char* op, const char* name, const Tensor& t, const char* like_name,
                const Tensor& like);

void check_grad_like(const char* op, const Tensor& grad, const Tensor& like);

}  // namespace detops::meta
