// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

#include "launch.cuh"

namespace detops::cuda {

// Neighbouring elements that one instruction loads or stores.
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

// n channels of a map, which are neighbours in memory in channels_last, else a plane apart. There,
// only `count` of them are: the others are read from the last one.
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

  // Keeps the compiler from adding up offsets plane by plane, before it adds the pointers.
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

// In the type of the map.
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

// Calls run(std::integral_constant<int, n>()), n being how many T a thread may take at a time from
// rows of `length` elements that begin at multiples of `length` after the pointers: `numbers` of
// them, which are 16 bytes unless said otherwise, or one.
template <typename T, int numbers = 16 / int(sizeof(T)), typename Run>
void with_vector(int64_t length, ArrayRef<const void*> pointers, const Run& run) {
  bool aligned = length % numbers == 0;
  for (const void* pointer : pointers) {
    aligned = aligned && reinterpret_cast<uintptr_t>(pointer) % (numbers * sizeof(T)) == 0;
  }
  if (aligned) {
    run(std::integral_constant<int, numbers>());
  } else {
    run(std::integral_constant<int, 1>());
  }
}

// Calls run(n, channels_last), both constants: a thread takes n channels, as with_vector says, or
// four planes, so that it finds a pixel once for all of them.
template <typename T, typename Run>
void with_layout(bool channels_last, int64_t channels, ArrayRef<const void*> pointers,
                 const Run& run) {
  if (channels_last) {
    with_vector<T>(channels, pointers, [&](auto n) { run(n, std::true_type()); });
  } else {
    run(std::integral_constant<int, 4>(), std::false_type());
  }
}

// Calls visit(i, std::integral_constant<int, k>()) so that the elements from i to i + k are each of
// [0, count) once, in all threads of the grid together; k is n, or 1 for what that leaves.
template <int n, typename Visit>
__device__ void for_each_vector(int64_t count, const Visit& visit) {
  const int64_t self = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t all = int64_t(gridDim.x) * blockDim.x, whole = count / n * n;
  for (int64_t i = self * n; i < whole; i += all * n) visit(i, std::integral_constant<int, n>());
  for (int64_t i = whole + self; i < count; i += all) visit(i, std::integral_constant<int, 1>());
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

template <typename T, typename A, int n>
__device__ void add_weighted(A weight, const Vector<T, n>& values, Vector<A, n>& sum) {
  for (int j = 0; j < n; ++j) {
    sum.at[j] = multiply_add(weight, static_cast<A>(values.at[j]), sum.at[j]);
  }
}

// A block's threads as rows of `count` threads that take a row of `vectors` together.
struct Lanes {
  int count, rows;  // of the block; what is left of it idles
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

// Dot products over channels: `lanes` threads of a warp take runs of channels in turn. Which thread
// adds which numbers depends on their count alone, so that all types and alignments give the same.
constexpr int kRun = 4;

inline int lanes_for_runs(int64_t channels, int run = kRun) {
  int lanes = 1;
  while (lanes < kWarp && lanes * run < channels) lanes *= 2;
  return lanes;
}

// The elements that at(i) points to, n at a time; zeros from i = `count` on.
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

// Over neighbouring lanes, a power of two of them. All threads of the warp take part.
template <typename A, int n>
__device__ void sum_over_lanes(Vector<A, n>& sums, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    for (int i = 0; i < n; ++i) sums.at[i] += __shfl_xor_sync(0xffffffffu, sums.at[i], step);
  }
}

}  // namespace detops::cuda
