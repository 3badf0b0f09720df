// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "../../csrc/math/box.h"
#include "../../csrc/tensor.h"

// Checks of the CPU half without PyTorch. torch.cpp stands in for it, so that an emulator can run
// them for another architecture (`make cross-check`). Each file compares some host functions, or
// their kernels, with plain loops.
namespace detops::cross {

// Counts and reports a failure if `passed` is false.
void check(bool passed, const char* name);

template <typename T>
constexpr ScalarType kTypeOf = torch::headeronly::CppTypeToScalarType<T>::value;

template <typename T>
Tensor tensor(const std::vector<T>& values, IntArrayRef sizes) {
  const Tensor result = empty(sizes, {kTypeOf<T>, kCPU, -1});
  std::copy(values.begin(), values.end(), result.template mutable_data_ptr<T>());
  return result;
}

template <typename T>
std::vector<T> to_vector(const Tensor& t) {
  const T* data = t.const_data_ptr<T>();
  return {data, data + t.numel()};
}

// Returns uniformly distributed numbers between `low` and `high`.
template <typename T>
std::vector<T> uniform(std::mt19937& random, int64_t count, T low, T high) {
  std::uniform_real_distribution<T> distribution(low, high);
  std::vector<T> result(count);
  for (T& x : result) x = distribution(random);
  return result;
}

// Returns `count` boxes with sides from 4 to 40 and the first corner in [0, reach).
template <typename T>
std::vector<math::Box<T>> random_boxes(std::mt19937& random, int64_t count, T extent) {
  std::uniform_real_distribution<T> position(0, extent), side(4, 40);
  std::vector<math::Box<T>> boxes(count);
  for (auto& box : boxes) {
    const T x = position(random), y = position(random);
    box = {x, y, x + side(random), y + side(random)};
  }
  return boxes;
}

template <typename T>
Tensor tensor(const std::vector<math::Box<T>>& boxes) {
  return from_blob(const_cast<math::Box<T>*>(boxes.data()), {int64_t(boxes.size()), 4}, {4, 1},
                   kTypeOf<T>);
}

template <typename T, typename U>
bool close(const std::vector<T>& ours, const std::vector<U>& expected, double tolerance) {
  return std::equal(ours.begin(), ours.end(), expected.begin(), expected.end(), [=](T a, U b) {
    return std::fabs(double(a) - double(b)) <= tolerance * (1 + std::fabs(double(b)));
  });
}

void check_attention(std::mt19937& random);
void check_boxes(std::mt19937& random);
void check_convolutions(std::mt19937& random);
void check_deform_conv2d(std::mt19937& random);
void check_masks(std::mt19937& random);
void check_pooling();

}  // namespace detops::cross
