// SPDX-License-Identifier: MIT
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <type_traits>

namespace detops::cuda {

// Neighbouring numbers that one instruction loads or stores.
template <typename T, int n>
struct alignas(sizeof(T) * n) Vector {
  T at[n];
};

template <int n, typename T>
__device__ Vector<T, n> load(const T* from) {
  return *reinterpret_cast<const Vector<T, n>*>(from);
}

template <int n, typename T>
__device__ void store(T* to, const Vector<T, n>& values) {
  *reinterpret_cast<Vector<T, n>*>(to) = values;
}

// Calls run(std::integral_constant<int, n>()), n being how many T a thread may take at a time from
// rows of `length` numbers that begin at multiples of `length` behind the pointers: 16 bytes of
// them, or one.
template <typename T, typename Run>
void with_vector(int64_t length, c10::ArrayRef<const void*> pointers, const Run& run) {
  constexpr int kNumbers = 16 / sizeof(T);
  bool aligned = length % kNumbers == 0;
  for (const void* pointer : pointers) {
    aligned = aligned && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  }
  if (aligned) {
    run(std::integral_constant<int, kNumbers>());
  } else {
    run(std::integral_constant<int, 1>());
  }
}

// a * b + c. --fmad=false keeps the compiler from fusing the two where a comparison follows; sums
// of weighted features may be fused, and are, on a GPU.
template <typename A>
__device__ A multiply_add(A a, A b, A c) {
#ifdef __CUDA_ARCH__
  return ::fma(a, b, c);
#else
  return a * b + c;
#endif
}

}  // namespace detops::cuda
