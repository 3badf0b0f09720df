// SPDX-License-Identifier: MIT
#pragma once

#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/core/MemoryFormat.h>
#include <torch/headeronly/util/HeaderOnlyArrayRef.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "dtype.h"

// PyTorch tensors through the C functions of the stable ABI. This package calls no other functions
// of PyTorch, so one binary works with every version. Names and semantics are those of ATen.
namespace detops {

using torch::headeronly::MemoryFormat;
template <typename T>
using ArrayRef = torch::headeronly::HeaderOnlyArrayRef<T>;
using IntArrayRef = ArrayRef<int64_t>;

[[noreturn]] void fail(const std::string& message);

// Raises an error with a message made of the parts if the condition does not hold.
template <typename... Parts>
void check(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream message;
  (message << ... << parts);
  fail(message.str());
}

// Raises an error if a C function of the stable ABI failed. DETOPS_STABLE calls and checks one.
void check_status(AOTITorchError status, const char* function);
#define DETOPS_STABLE(function, ...) ::detops::check_status(function(__VA_ARGS__), #function)

constexpr int kCPU = 0;

struct Options {
  ScalarType type;
  int device;  // device type, in PyTorch's numbering
  int index;   // device index

  Options dtype(ScalarType other) const { return {other, device, index}; }
};

// Metadata of a tensor. `sizes` and `strides` point into the tensor itself.
struct TensorMetadata : Options {
  const int64_t *sizes, *strides;  // null for an undefined or non-strided tensor
  int64_t dim;                     // negative for a non-strided tensor

  int64_t numel() const {
    int64_t count = 1;
    for (int64_t d = 0; d < dim; ++d) count *= sizes[d];
    return count;
  }
};

// A reference to a tensor, with cached metadata.
class Tensor {
 public:
  Tensor() = default;  // undefined
  // Takes ownership of the handle.
  explicit Tensor(AtenTensorHandle handle);
  // The same for a newly created tensor with these options and dimensions.
  Tensor(AtenTensorHandle handle, const Options& options, size_t dim);
  Tensor(const Tensor& other);
  Tensor(Tensor&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), metadata_(other.metadata_) {}
  Tensor& operator=(Tensor other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(metadata_, other.metadata_);
    return *this;
  }
  ~Tensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  AtenTensorHandle handle() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

  bool defined() const { return handle_ != nullptr; }
  bool is_same(const Tensor& other) const;
  const TensorMetadata& metadata() const { return metadata_; }
  int64_t dim() const { return metadata_.dim; }
  IntArrayRef sizes() const { return {metadata_.sizes, size_t(metadata_.dim)}; }
  IntArrayRef strides() const { return {metadata_.strides, size_t(metadata_.dim)}; }
  int64_t size(int64_t d) const { return metadata_.sizes[d < 0 ? d + metadata_.dim : d]; }
  int64_t stride(int64_t d) const { return metadata_.strides[d < 0 ? d + metadata_.dim : d]; }
  int64_t numel() const { return metadata_.numel(); }
  ScalarType scalar_type() const { return metadata_.type; }
  int64_t element_size() const {
    return int64_t(aoti_torch_dtype_element_size(int32_t(metadata_.type)));
  }
  int64_t nbytes() const { return numel() * element_size(); }
  Options options() const { return metadata_; }
  bool is_cpu() const { return metadata_.device == kCPU; }
  bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const;
  MemoryFormat suggest_memory_format() const;

  const void* const_data_ptr() const;
  void* mutable_data_ptr() const;
  template <typename T>
  const T* const_data_ptr() const {
    check_dtype(torch::headeronly::CppTypeToScalarType<T>::value);
    return static_cast<const T*>(const_data_ptr());
  }
  template <typename T>
  T* mutable_data_ptr() const {
    check_dtype(torch::headeronly::CppTypeToScalarType<T>::value);
    return static_cast<T*>(mutable_data_ptr());
  }
  // Returns the only element of the tensor.
  template <typename T>
  T item() const;

  // Views of the same elements.
  Tensor as_strided(IntArrayRef sizes, IntArrayRef strides, int64_t offset = 0) const;
  Tensor view(IntArrayRef sizes) const;
  Tensor narrow(int64_t d, int64_t start, int64_t length) const;
  Tensor permute(IntArrayRef order) const;
  Tensor transpose(int64_t a, int64_t b) const;
  Tensor t() const { return transpose(0, 1); }

  // contiguous() and to() copy only if the layout or type differs.
  Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) const&;
  Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) &&;
  Tensor to(ScalarType type) const;
  Tensor clone() const;

  const Tensor& copy_(const Tensor& from) const;
  const Tensor& zero_() const;
  const Tensor& fill_(double value) const;

 private:
  void check_dtype(ScalarType type) const;

  AtenTensorHandle handle_ = nullptr;
  TensorMetadata metadata_{};
};

using TensorList = ArrayRef<Tensor>;

// Sizes of a [N, C, H, W] tensor.
struct MapSizes {
  int64_t images, channels, height, width;

  explicit MapSizes(const Tensor& maps)
      : images(maps.size(0)), channels(maps.size(1)), height(maps.size(2)), width(maps.size(3)) {}
};

// Returns whether PyTorch treats the strides as channels_last.
bool is_channels_last(const TensorMetadata& t);

Tensor empty(IntArrayRef sizes, const Options& options,
             MemoryFormat format = MemoryFormat::Contiguous);
Tensor empty_like(const Tensor& t);
Tensor empty_like(const Tensor& t, const Options& options);
Tensor zeros(IntArrayRef sizes, const Options& options);
// Wraps memory that must outlive the tensor.
Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, ScalarType type);

template <typename T>
T Tensor::item() const {
  check(numel() == 1, "item() requires a tensor with one element, got ", numel());
  const Tensor host = is_cpu() ? *this : empty(sizes(), {metadata_.type, kCPU, -1}).copy_(*this);
  return *host.const_data_ptr<T>();
}

// The arena keeps the memory of large CPU tensors that were freed, and reuses it for new ones. The
// C library returns each such block to the system, which clears every page of the next one. A
// detector allocates more than a gigabyte of feature maps per image, and this takes a fifth of its
// time.

// Sets whether ops in this thread allocate large tensors in the arena. Returns the previous value.
bool use_arena(bool on);

// Returns an undefined tensor if this thread does not use the arena, the arena is full, or the
// tensor is too small for it.
Tensor empty_in_arena(IntArrayRef sizes, const int64_t* strides, const Options& options);

// Bytes that the arena holds, and how many of them are free.
struct ArenaSize {
  int64_t held, free;
};
ArenaSize arena_size();

// Returns free memory of the arena to the system.
void release_arena();

// Calls an operator of PyTorch by its name.
namespace call {

inline StableIValue boxed(int64_t value) { return static_cast<StableIValue>(value); }
inline StableIValue boxed(const Tensor& t) {  // the callee releases it
  return reinterpret_cast<StableIValue>(Tensor(t).release());
}

template <typename... Arguments>
Tensor op(const char* name, const char* overload, const Arguments&... arguments) {
  StableIValue stack[] = {boxed(arguments)...};
  check_status(torch_call_dispatcher(name, overload, stack, TORCH_ABI_VERSION), name);
  return Tensor(reinterpret_cast<AtenTensorHandle>(stack[0]));
}

}  // namespace call

}  // namespace detops
