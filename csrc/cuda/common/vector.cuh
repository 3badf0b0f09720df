// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

#include "launch.cuh"

namespace detops::cuda {

// Adjacent elements that one instruction loads or stores.
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

// Pointers to n channels of a feature map: adjacent in memory in channels_last, else one plane
// apart. Without channels_last only `count` of them exist; the others alias the last one.
template <int n, bool channels_last, typename T>
struct Channels {
  T* at[channels_last ? 1 : n];

  __device__ Channels(T* first, int64_t plane, int count) {
    at[0] = first;
    for (int j = 1; j < n && !channels_last; ++j) at[j] = at[j - 1] + (j < count ? plane : 0);
    pin();
  }

  __device__ Channels operator+(int64_t offset) const {
    Channels moved = *this;
    for (T*& pointer : moved.at) pointer += offset;
    moved.pin();
    return moved;
  }

  // Keeps the compiler from summing the offsets for each plane before it adds the pointer.
  __device__ void pin() {
#ifdef __CUDA_ARCH__
    for (T*& pointer : at) {
      if constexpr (!channels_last) asm("" : "+l"(pointer));
      __builtin_assume(__isGlobal(pointer));
    }
#endif
  }

  __device__ Vector<std::remove_const_t<T>, n> operator[](int64_t offset) const {
    if constexpr (channels_last) {
      return load<n>(at[0] + offset);
    } else {
      Vector<std::remove_const_t<T>, n> values;
      for (int j = 0; j < n; ++j) values.at[j] = at[j][offset];
      return values;
    }
  }
};

// Stores n channels as T, with the memory layout of Channels.
template <int n, bool channels_last, typename T, typename A>
__device__ void store_channels(T* to, int64_t plane, int count, const Vector<A, n>& values) {
  Vector<T, n> converted;
  for (int j = 0; j < n; ++j) converted.at[j] = static_cast<T>(values.at[j]);
  if constexpr (channels_last) {
    store(to, converted);
  } else {
    for (int j = 0; j < n && j < count; ++j) to[j * plane] = converted.at[j];
  }
}

// Calls run(std::integral_constant<int, n>()), where n is how many T a thread can load at a time.
// Rows have `length` elements and begin at multiples of `length` from the pointers. If all of them
// are aligned, n is `vector_size`, 16 bytes by default, else 1.
template <typename T, int vector_size = 16 / int(sizeof(T)), typename Run>
void with_vector(int64_t length, ArrayRef<const void*> pointers, const Run& run) {
  bool aligned = length % vector_size == 0;
  for (const void* pointer : pointers) {
    aligned = aligned && reinterpret_cast<uintptr_t>(pointer) % (vector_size * sizeof(T)) == 0;
  }
  if (aligned) {
    run(std::integral_constant<int, vector_size>());
  } else {
    run(std::integral_constant<int, 1>());
  }
}

// Calls run(n, channels_last) with two constants. In channels_last, n comes from with_vector.
// Otherwise a thread handles four planes, so that it locates a pixel once for all of them.
template <typename T, typename Run>
void with_layout(bool channels_last, int64_t channels, ArrayRef<const void*> pointers,
                 const Run& run) {
  if (channels_last) {
    with_vector<T>(channels, pointers, [&](auto n) { run(n, std::true_type()); });
  } else {
    run(std::integral_constant<int, 4>(), std::false_type());
  }
}

// Calls visit(i, std::integral_constant<int, k>()) for the elements [i, i + k). All threads of the
// grid together cover [0, count) once. k is n, or 1 for the remainder.
template <int n, typename Visit>
__device__ void for_each_vector(int64_t count, const Visit& visit) {
  const int64_t self = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = int64_t(gridDim.x) * blockDim.x, end = count / n * n;
  for (int64_t i = self * n; i < end; i += step * n) visit(i, std::integral_constant<int, n>());
  for (int64_t i = end + self; i < count; i += step) visit(i, std::integral_constant<int, 1>());
}

// Returns a * b + c, fused on a GPU. The build sets --fmad=false, because fusing must not change
// results that are compared. Sums of weighted features may be fused.
template <typename A>
__device__ A multiply_add(A a, A b, A c) {
#ifdef __CUDA_ARCH__
  return ::fma(a, b, c);
#else
  return a * b + c;
#endif
}

template <typename T, typename A, int n>
__device__ void add_weighted(A weight, const Vector<T, n>& values, Vector<A, n>& sum) {
  for (int j = 0; j < n; ++j) {
    sum.at[j] = multiply_add(weight, static_cast<A>(values.at[j]), sum.at[j]);
  }
}

// Arranges a block's threads in rows of `count` threads. Each row handles one row of `vectors`.
struct Lanes {
  int count, rows;  // of the block; leftover threads idle
  int lane, row;    // of this thread
  bool idle;

  __device__ explicit Lanes(int64_t vectors)
      : count(vectors < blockDim.x ? static_cast<int>(vectors) : static_cast<int>(blockDim.x)),
        rows(static_cast<int>(blockDim.x) / count),
        lane(static_cast<int>(threadIdx.x) % count),
        row(static_cast<int>(threadIdx.x) / count),
        idle(row >= rows) {}
};

inline int64_t rows_per_block(int64_t vectors, int64_t threads = kThreads) {
  return threads / std::min(vectors, threads);
}

// Dot products over channels: `lanes` threads of a warp take turns at runs of kRun channels. Which
// thread adds which elements depends only on their count, so the order of summation is the same
// for every dtype and alignment.
constexpr int kRun = 4;

inline int lanes_for_runs(int64_t channels, int run = kRun) {
  int lanes = 1;
  while (lanes < kWarp && lanes * run < channels) lanes *= 2;
  return lanes;
}

// Loads the elements that at(i) points to, n at a time; zeros from i = `count` on.
template <int n, typename A, typename At>
__device__ Vector<A, kRun> load_run(int64_t count, const At& at) {
  Vector<A, kRun> run{};
  for (int i = 0; i < kRun; i += n) {
    if (i >= count) break;
    const auto part = load<n>(at(i));
    for (int j = 0; j < n; ++j) run.at[i + j] = A(part.at[j]);
  }
  return run;
}

template <typename A>
__device__ A dot(const Vector<A, kRun>& a, const Vector<A, kRun>& b, A sum) {
  for (int i = 0; i < kRun; ++i) sum = multiply_add(a.at[i], b.at[i], sum);
  return sum;
}

// Sums over groups of `lanes` adjacent lanes, a power of two. All threads of the warp must call it.
template <typename A, int n>
__device__ void sum_over_lanes(Vector<A, n>& sums, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    for (int i = 0; i < n; ++i) sums.at[i] += __shfl_xor_sync(0xffffffffu, sums.at[i], step);
  }
}

}  // namespace detops::cuda
