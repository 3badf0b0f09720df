// SPDX-License-Identifier: MIT
// A stand-in for the LibTorch C functions that the CPU host functions call: strided tensors in
// memory, and four threads. With DETOPS_CROSS_THREADS, for `make tsan`, the threads are real.
// Otherwise the parts of a loop run one after another, the last part first.
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/c/shim.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "../../csrc/dtype.h"

// All handles of a tensor are the same pointer, so its sizes and strides never move.
struct AtenTensorOpaque {
  std::shared_ptr<char> memory;
  char* data;
  std::vector<int64_t> sizes, strides;
  int32_t dtype;
  int handles = 1;
};

namespace {

using Handle = AtenTensorHandle;
using Strides = std::vector<int64_t>;

[[noreturn]] void unsupported(const char* what) {
  std::fprintf(stderr, "the stub of LibTorch does not support %s\n", what);
  std::abort();
}

// Calls run(T()) with the type of the elements.
template <typename Run>
void with_type(int32_t dtype, const Run& run) {
  using detops::ScalarType;
  switch (static_cast<ScalarType>(dtype)) {
    case ScalarType::Bool:
      return run(bool());
    case ScalarType::Byte:
      return run(uint8_t());
    case ScalarType::Int:
      return run(int32_t());
    case ScalarType::Long:
      return run(int64_t());
    default:
      DETOPS_FLOAT_SWITCH(static_cast<ScalarType>(dtype), [&] { run(scalar_t()); });
  }
}

int64_t size_of(int32_t dtype) {
  int64_t size = 0;
  with_type(dtype, [&](auto element) { size = sizeof element; });
  return size;
}

Handle tensor(std::shared_ptr<char> memory, char* data, int64_t dim, const int64_t* sizes,
              const int64_t* strides, int32_t dtype) {
  return new AtenTensorOpaque{
      std::move(memory), data, {sizes, sizes + dim}, {strides, strides + dim}, dtype};
}

// Calls run(first, second) with the offsets of each element in two tensors, counted in elements.
template <typename Run>
void each(const Strides& sizes, const Strides& first, const Strides& second, const Run& run,
          size_t d = 0, int64_t a = 0, int64_t b = 0) {
  if (d == sizes.size()) return run(a, b);
  for (int64_t i = 0; i < sizes[d]; ++i) {
    each(sizes, first, second, run, d + 1, a + i * first[d], b + i * second[d]);
  }
}

// out = bias + left right; bias may be null.
AOTITorchError product(Handle out, Handle bias, Handle left, Handle right) {
  with_type(out->dtype, [&](auto element) {
    using T = decltype(element);
    const auto at = [](Handle t, int64_t row, int64_t column) -> T& {
      return reinterpret_cast<T*>(t->data)[row * t->strides[0] + column * t->strides[1]];
    };
    for (int64_t i = 0; i < out->sizes[0]; ++i) {
      for (int64_t j = 0; j < out->sizes[1]; ++j) {
        double sum = 0;
        if (bias != nullptr) {
          if (bias->sizes != out->sizes) unsupported("a bias of other sizes");
          sum = static_cast<double>(at(bias, i, j));
        }
        for (int64_t k = 0; k < left->sizes[1]; ++k) {
          sum += static_cast<double>(at(left, i, k)) * static_cast<double>(at(right, k, j));
        }
        at(out, i, j) = static_cast<T>(sum);
      }
    }
  });
  return 0;
}

// The same for each matrix of a batch.
AOTITorchError products(Handle out, Handle bias, Handle left, Handle right) {
  const auto matrix = [](Handle t, int64_t i) {
    return AtenTensorOpaque{t->memory,
                            t->data + i * t->strides[0] * size_of(t->dtype),
                            {t->sizes.begin() + 1, t->sizes.end()},
                            {t->strides.begin() + 1, t->strides.end()},
                            t->dtype};
  };
  for (int64_t i = 0; i < out->sizes[0]; ++i) {
    auto to = matrix(out, i), a = matrix(left, i), b = matrix(right, i);
    auto sum = matrix(bias == nullptr ? out : bias, i);
    product(&to, bias == nullptr ? nullptr : &sum, &a, &b);
  }
  return 0;
}

}  // namespace

size_t aoti_torch_dtype_element_size(int32_t dtype) { return size_of(dtype); }
int32_t aoti_torch_layout_strided() { return 0; }

AOTITorchError aoti_torch_is_defined(Handle t, bool* result) { return *result = t != nullptr, 0; }
AOTITorchError aoti_torch_get_layout(Handle, int32_t* result) { return *result = 0; }
AOTITorchError aoti_torch_get_device_type(Handle, int32_t* result) { return *result = 0; }
AOTITorchError aoti_torch_get_device_index(Handle, int32_t* result) { return *result = -1, 0; }
AOTITorchError aoti_torch_get_dtype(Handle t, int32_t* result) { return *result = t->dtype, 0; }
AOTITorchError aoti_torch_get_dim(Handle t, int64_t* result) {
  return *result = static_cast<int64_t>(t->sizes.size()), 0;
}
AOTITorchError aoti_torch_get_sizes(Handle t, int64_t** result) {
  return *result = t->sizes.data(), 0;
}
AOTITorchError aoti_torch_get_strides(Handle t, int64_t** result) {
  return *result = t->strides.data(), 0;
}
AOTITorchError torch_get_mutable_data_ptr(Handle t, void** result) { return *result = t->data, 0; }
AOTITorchError torch_get_const_data_ptr(Handle t, const void** result) {
  return *result = t->data, 0;
}

AOTITorchError aoti_torch_delete_tensor_object(Handle t) {
  if (t != nullptr && --t->handles == 0) delete t;
  return 0;
}
AOTITorchError aoti_torch_new_tensor_handle(Handle t, Handle* result) {
  ++t->handles;
  return *result = t, 0;
}
AOTITorchError aoti_torch_empty_strided(int64_t dim, const int64_t* sizes, const int64_t* strides,
                                        int32_t dtype, int32_t, int32_t, Handle* result) {
  int64_t last = 0;
  for (int64_t d = 0; d < dim; ++d) last += std::max<int64_t>(0, sizes[d] - 1) * strides[d];
  const int64_t bytes = (last + 1) * size_of(dtype);
  std::shared_ptr<char> memory(new char[bytes], std::default_delete<char[]>());
  std::memset(memory.get(), 0xab, bytes);  // so that checks fail if elements are not written
  return *result = tensor(memory, memory.get(), dim, sizes, strides, dtype), 0;
}
AOTITorchError aoti_torch_create_tensor_from_blob(void* data, int64_t dim, const int64_t* sizes,
                                                  const int64_t* strides, int64_t, int32_t dtype,
                                                  int32_t, int32_t, Handle* result) {
  return *result = tensor(nullptr, static_cast<char*>(data), dim, sizes, strides, dtype), 0;
}
AOTITorchError aoti_torch__reinterpret_tensor(Handle t, int64_t dim, const int64_t* sizes,
                                              const int64_t* strides, int64_t offset,
                                              Handle* result) {
  char* data = t->data + offset * size_of(t->dtype);
  return *result = tensor(t->memory, data, dim, sizes, strides, t->dtype), 0;
}

AOTITorchError aoti_torch_copy_(Handle to, Handle from, int32_t) {
  Strides expanded(to->sizes.size());
  for (size_t d = 0; d < expanded.size(); ++d) {
    const size_t missing_dims = expanded.size() - from->sizes.size();
    if (d < missing_dims || from->sizes[d - missing_dims] == 1) continue;
    if (from->sizes[d - missing_dims] != to->sizes[d]) unsupported("a copy of other sizes");
    expanded[d] = from->strides[d - missing_dims];
  }
  with_type(to->dtype, [&](auto target) {
    with_type(from->dtype, [&](auto source) {
      auto* out = reinterpret_cast<decltype(target)*>(to->data);
      const auto* in = reinterpret_cast<const decltype(source)*>(from->data);
      each(to->sizes, to->strides, expanded,
           [&](int64_t a, int64_t b) { out[a] = static_cast<decltype(target)>(in[b]); });
    });
  });
  return 0;
}
AOTITorchError aoti_torch_aten_fill__Scalar(Handle t, double value) {
  with_type(t->dtype, [&](auto element) {
    auto* out = reinterpret_cast<decltype(element)*>(t->data);
    each(t->sizes, t->strides, t->strides,
         [&](int64_t i, int64_t) { out[i] = static_cast<decltype(element)>(value); });
  });
  return 0;
}
AOTITorchError aoti_torch_zero_(Handle t) { return aoti_torch_aten_fill__Scalar(t, 0); }

AOTITorchError aoti_torch_cpu_mm_out(Handle out, Handle left, Handle right) {
  return product(out, nullptr, left, right);
}
AOTITorchError aoti_torch_cpu_addmm_out(Handle out, Handle bias, Handle left, Handle right, double,
                                        double) {
  return product(out, bias, left, right);
}
AOTITorchError aoti_torch_cpu_bmm_out(Handle out, Handle left, Handle right) {
  return products(out, nullptr, left, right);
}
AOTITorchError aoti_torch_cpu_baddbmm_out(Handle out, Handle bias, Handle left, Handle right,
                                          double, double) {
  return products(out, bias, left, right);
}

AOTITorchError torch_get_num_threads(uint32_t* result) { return *result = 4, 0; }
AOTITorchError torch_parallel_for(int64_t begin, int64_t end, int64_t grain, ParallelFunc body,
                                  void* context) {
  const int64_t part = std::max(grain, (end - begin + 3) / 4);
#ifdef DETOPS_CROSS_THREADS
  std::vector<std::thread> threads;
#endif
  for (int64_t last = end; last > begin;) {
    const int64_t first = begin + (last - 1 - begin) / part * part;
#ifdef DETOPS_CROSS_THREADS
    threads.emplace_back([=] { body(first, last, context); });
#else
    body(first, last, context);
#endif
    last = first;
  }
#ifdef DETOPS_CROSS_THREADS
  for (std::thread& thread : threads) thread.join();
#endif
  return 0;
}

AOTITorchError torch_call_dispatcher(const char* op, const char*, StableIValue*, uint64_t) {
  unsupported(op);
}
