// SPDX-License-Identifier: MIT
#pragma once

#ifdef DETOPS_EMULATE_CUDA
#include "emulation.h"  // in tests/emulation
#else
#include <cuda_runtime.h>
#endif

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "../../ops.h"
#include "indexing.h"

namespace detops::cuda {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

// Launch configuration of a kernel. A number of blocks converts to it implicitly.
struct LaunchConfig {
  dim3 blocks;
  unsigned threads = kThreads;
  size_t shared_bytes = 0;
  bool cooperative = false;  // all blocks are resident and can synchronise

  LaunchConfig(unsigned n, unsigned n_threads = kThreads, size_t n_shared_bytes = 0)
      : blocks(n), threads(n_threads), shared_bytes(n_shared_bytes) {}
  LaunchConfig(dim3 n, unsigned n_threads = kThreads, size_t n_shared_bytes = 0)
      : blocks(n), threads(n_threads), shared_bytes(n_shared_bytes) {}
};

// Limits of the current device for kernels whose blocks are all resident at once.
struct Device {
  int multiprocessors, max_shared_bytes, cooperative;  // shared memory per block

#ifdef DETOPS_EMULATE_CUDA
  Device()
      : multiprocessors(16), max_shared_bytes(48 << 10), cooperative(false) {}  // small for tests
#else
  Device() {
    int device = 0;
    const bool queried =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) ==
            cudaSuccess &&
        cudaDeviceGetAttribute(&max_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                               device) == cudaSuccess &&
        cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device) == cudaSuccess;
    check(queried, "the attributes of the device could not be queried");
  }
#endif
};

// Returns enough blocks for `work` items, up to a limit. Grid-stride loops cover the rest.
inline unsigned blocks_for(int64_t work, int64_t per_block = kThreads) {
#ifdef DETOPS_EMULATE_CUDA
  constexpr int64_t kMaxBlocks = 3;  // small, so that tests run the grid-stride loops
#else
  constexpr int64_t kMaxBlocks = 1 << 20;
#endif
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(work, per_block), 1, kMaxBlocks));
}

// The tensor must be contiguous in its layout.
inline FeatureMaps maps_of(const Tensor& t) {
  return {t.size(0), t.size(1), t.size(2), t.size(3), is_channels_last(t)};
}

// Converts a size that a kernel counts in 32 bits. The wrapper of the host functions prefixes this
// error and launch errors with the op's name.
inline int narrow(int64_t size) {
  check(std::abs(size) <= std::numeric_limits<int>::max(), "a size of ", size,
        " exceeds the 32-bit limit of the CUDA kernels");
  return static_cast<int>(size);
}

// For decltype only: the element type T of a pointer to T, Row<T> or Row<T, n>.
template <typename T>
T element_of(const T*);
template <template <typename> class Row, typename T>
T element_of(const Row<T>*);
template <template <typename, int> class Row, typename T, int n>
T element_of(const Row<T, n>*);

// Converts to a pointer to a tensor's elements, or to structs of such elements. Null if the tensor
// is undefined.
struct Elements {
  const Tensor& tensor;

  template <typename Row>
  operator Row*() const {
    using T = decltype(element_of(static_cast<Row*>(nullptr)));
    if (!tensor.defined()) return nullptr;
    if constexpr (std::is_const_v<Row>) {
      return reinterpret_cast<Row*>(tensor.const_data_ptr<T>());
    } else {
      return reinterpret_cast<Row*>(tensor.mutable_data_ptr<T>());
    }
  }
};

inline Elements elements(const Tensor& t) { return {t}; }

// Allocates an array of each type in Ts, with `counts` elements. All of them are in `memory`: one
// tensor is cheaper than one per array.
template <typename... Ts, typename... Counts>
std::tuple<Ts*...> allocate_arrays(Tensor& memory, const Options& options, Counts... counts) {
  constexpr int64_t kAlignment = 256;
  int64_t size = 0;
  const auto reserve = [&](int64_t bytes) {
    return std::exchange(size, size + ceil_div(bytes, kAlignment) * kAlignment);
  };
  const int64_t offsets[] = {reserve(counts * int64_t(sizeof(Ts)))...};
  memory = empty({size}, options.dtype(kByte));
  auto* bytes = static_cast<unsigned char*>(memory.mutable_data_ptr());
  const int64_t* offset = offsets;
  std::tuple<Ts*...> pointers;
  std::apply([&](auto&... array) { ((array = reinterpret_cast<Ts*>(bytes + *offset++)), ...); },
             pointers);
  return pointers;
}

template <typename P, typename Argument>
P parameter(const Argument& argument) {
  return static_cast<P>(argument);
}

// Kernels receive a tensor as a pointer to its elements.
template <typename P>
P parameter(const Tensor& t) {
  return elements(t);
}

#ifndef DETOPS_EMULATE_CUDA
inline cudaStream_t current_stream() {
  int32_t device = 0;
  void* stream = nullptr;
  DETOPS_STABLE(aoti_torch_get_current_device_index, &device);
  DETOPS_STABLE(aoti_torch_get_current_cuda_stream, device, &stream);
  return static_cast<cudaStream_t>(stream);
}
#endif

// Starts a kernel on the current stream.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchConfig& config,
            const Arguments&... arguments) {
#ifdef DETOPS_EMULATE_CUDA
  const std::tuple<Parameters...> parameters{parameter<Parameters>(arguments)...};
  emulation::run(config.blocks, config.threads, config.shared_bytes,
                 [&] { std::apply(kernel, parameters); });
#else
  const cudaStream_t stream = current_stream();
  if (config.shared_bytes > 48 << 10) {  // the limit without opting in
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         int(config.shared_bytes));
  }
  if (config.cooperative) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    const cudaLaunchConfig_t cuda_config{config.blocks, config.threads, config.shared_bytes,
                                         stream,        &attribute,     1};
    cudaLaunchKernelEx(&cuda_config, kernel, parameter<Parameters>(arguments)...);
  } else {
    // clang-format off
    kernel<<<config.blocks, config.threads, config.shared_bytes, stream>>>(
        parameter<Parameters>(arguments)...);
    // clang-format on
  }
  const cudaError_t error = cudaGetLastError();
  check(error == cudaSuccess, "the launch of ", config.blocks.x, " x ", config.blocks.y,
        " blocks of ", config.threads, " threads failed: ", cudaGetErrorString(error));
#endif
}

// A block's dynamic shared memory, as bytes. LaunchConfig::shared_bytes is its size.
#ifdef DETOPS_EMULATE_CUDA
#define DETOPS_DYNAMIC_SHARED(name) unsigned char* const name = emulation::dynamic_memory
#else
#define DETOPS_DYNAMIC_SHARED(name) extern __shared__ unsigned char name[]
#endif

// Grid-stride loop over [0, n).
#define DETOPS_FOR_EACH(i, n)                                                      \
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < int64_t(n); \
       i += int64_t(gridDim.x) * blockDim.x)

template <typename Each>
__global__ void for_each_kernel(Each each, int64_t n) {
  DETOPS_FOR_EACH(i, n) { each(i); }
}

// Calls each(i) on the device for all i in [0, n), in parallel.
template <typename Each>
void for_each(int64_t n, const Each& each) {
  launch(for_each_kernel<Each>, blocks_for(n), each, n);
}

}  // namespace detops::cuda
