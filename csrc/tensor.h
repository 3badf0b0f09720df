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

// PyTorch's tensors through the C functions of its stable ABI, the only ones that this package
// calls: so one binary serves every version. Names and meanings are ATen's.
namespace detops {

using torch::headeronly::MemoryFormat;
template <typename T>
using ArrayRef = torch::headeronly::HeaderOnlyArrayRef<T>;
using IntArrayRef = ArrayRef<int64_t>;

[[noreturn]] void fail(const std::string& message);

// An error made of the parts where the condition does not hold.
template <typename... Parts>
void check(bool holds, const Parts&... parts) {
  if (holds) return;
  std::ostringstream message;
  (message << ... << parts);
  fail(message.str());
}

// Calls a C function of the stable ABI, and raises an error where it fails.
void check_status(AOTITorchError status, const char* function);
#define DETOPS_STABLE(function, ...) ::detops::check_status(function(__VA_ARGS__), #function)

constexpr int kCPU = 0;

struct Options {
  ScalarType type;
  int device;  // its type, as PyTorch numbers them
  int index;   // of the device

  Options dtype(ScalarType other) const { return {other, device, index}; }
};

// What can be known of a tensor without its elements. Sizes and strides are the tensor's own
// memory.
struct TensorFacts : Options {
  const int64_t *sizes, *strides;  // null of an undefined tensor, and of one without strides
  int64_t dim;                     // below 0: without strides

  int64_t numel() const {
    int64_t count = 1;
    for (int64_t d = 0; d < dim; ++d) count *= sizes[d];
    return count;
  }
};

// A reference to a tensor; what is known of it is asked for once.
class Tensor {
 public:
  Tensor() = default;  // undefined
  // Takes the handle over.
  explicit Tensor(AtenTensorHandle handle);
  // Likewise, of a tensor that has just been made like this.
  Tensor(AtenTensorHandle handle, const Options& options, size_t dim);
  Tensor(const Tensor& other);
  Tensor(Tensor&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), facts_(other.facts_) {}
  Tensor& operator=(Tensor other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(facts_, other.facts_);
    return *this;
  }
  ~Tensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  AtenTensorHandle handle() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

  bool defined() const { return handle_ != nullptr; }
  bool is_same(const Tensor& other) const;
  const TensorFacts& facts() const { return facts_; }
  int64_t dim() const { return facts_.dim; }
  IntArrayRef sizes() const { return {facts_.sizes, size_t(facts_.dim)}; }
  IntArrayRef strides() const { return {facts_.strides, size_t(facts_.dim)}; }
  int64_t size(int64_t d) const { return facts_.sizes[d < 0 ? d + facts_.dim : d]; }
  int64_t stride(int64_t d) const { return facts_.strides[d < 0 ? d + facts_.dim : d]; }
  int64_t numel() const { return facts_.numel(); }
  ScalarType scalar_type() const { return facts_.type; }
  int64_t element_size() const {
    return int64_t(aoti_torch_dtype_element_size(int32_t(facts_.type)));
  }
  int64_t nbytes() const { return numel() * element_size(); }
  Options options() const { return facts_; }
  bool is_cpu() const { return facts_.device == kCPU; }
  bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const;
  MemoryFormat suggest_memory_format() const;

  const void* const_data_ptr() const;
  void* mutable_data_ptr() const;
  template <typename T>
  const T* const_data_ptr() const {
    expect_elements(torch::headeronly::CppTypeToScalarType<T>::value);
    return static_cast<const T*>(const_data_ptr());
  }
  template <typename T>
  T* mutable_data_ptr() const {
    expect_elements(torch::headeronly::CppTypeToScalarType<T>::value);
    return static_cast<T*>(mutable_data_ptr());
  }
  // The element of a tensor of one.
  template <typename T>
  T item() const;

  // The same elements.
  Tensor as_strided(IntArrayRef sizes, IntArrayRef strides, int64_t offset = 0) const;
  Tensor view(IntArrayRef sizes) const;
  Tensor narrow(int64_t d, int64_t start, int64_t length) const;
  Tensor permute(IntArrayRef order) const;
  Tensor transpose(int64_t a, int64_t b) const;
  Tensor t() const { return transpose(0, 1); }

  // Copies, except where the tensor is what is asked for.
  Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) const&;
  Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) &&;
  Tensor to(ScalarType type) const;
  Tensor clone() const;

  const Tensor& copy_(const Tensor& from) const;
  const Tensor& zero_() const;
  const Tensor& fill_(double value) const;

 private:
  void expect_elements(ScalarType type) const;

  AtenTensorHandle handle_ = nullptr;
  TensorFacts facts_{};
};

using TensorList = ArrayRef<Tensor>;

// Of [N, C, H, W].
struct MapSizes {
  int64_t images, channels, height, width;

  explicit MapSizes(const Tensor& maps)
      : images(maps.size(0)), channels(maps.size(1)), height(maps.size(2)), width(maps.size(3)) {}
};

// PyTorch's rule: whether strides count as channels_last.
bool is_channels_last(const TensorFacts& t);

Tensor empty(IntArrayRef sizes, const Options& options,
             MemoryFormat format = MemoryFormat::Contiguous);
Tensor empty_like(const Tensor& t);
Tensor empty_like(const Tensor& t, const Options& options);
Tensor zeros(IntArrayRef sizes, const Options& options);
// Of memory that outlives it.
Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, ScalarType type);

template <typename T>
T Tensor::item() const {
  check(numel() == 1, "one element was asked of a tensor of ", numel());
  const Tensor host = is_cpu() ? *this : empty(sizes(), {facts_.type, kCPU, -1}).copy_(*this);
  return *host.const_data_ptr<T>();
}

// An arena has memory for large tensors on the CPU that stays when they go, for the next ones. The
// C library gives each such block back to the system, and the system clears page after page for the
// next: a detector has more than a gigabyte of maps an image, and a fifth of its time goes there.

// Whether large tensors that the ops make in this thread are taken from the arena; what was before.
bool use_arena(bool on);

// Undefined where they are not, or the arena has no room, or nothing that it would be worth.
Tensor empty_in_arena(IntArrayRef sizes, const int64_t* strides, const Options& options);

// Bytes that the arena holds, and of those, which no tensor has.
struct ArenaSize {
  int64_t held, free;
};
ArenaSize arena_size();

// Gives what no tensor has back to the system.
void release_arena();

// An operator of PyTorch by its name.
namespace call {

inline StableIValue boxed(int64_t value) { return static_cast<StableIValue>(value); }
inline StableIValue boxed(const Tensor& t) {  // for the callee to release
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
