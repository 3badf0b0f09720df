// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "../../csrc/tensor.h"

// The CPU half without PyTorch, for which torch.cpp stands in, so that it can be run on another
// architecture by an emulator: see `make cross-check`. Each file compares some host functions, or
// their kernels, with plain loops.
namespace detops::cross {

// Counts and reports a failure.
void check(bool good, const char* what);

template <typename T>
Tensor tensor(const std::vector<T>& values, IntArrayRef sizes) {
  constexpr ScalarType kType = torch::headeronly::CppTypeToScalarType<T>::value;
  const Tensor result = empty(sizes, {kType, kCPU, -1});
  std::copy(values.begin(), values.end(), result.template mutable_data_ptr<T>());
  return result;
}

void check_attention(std::mt19937& random);
void check_deform_conv2d(std::mt19937& random);
void check_masks(std::mt19937& random);
void check_pooling();

}  // namespace detops::cross
