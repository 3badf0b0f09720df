// SPDX-License-Identifier: MIT
#include "tensor.h"

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "huge_pages.h"

namespace detops {
namespace {

constexpr size_t kMaxDims = 64;  // PyTorch's own limit
using Sizes = std::array<int64_t, kMaxDims>;
constexpr int kChannelsLast[] = {1, 3, 2, 0};  // dimensions, innermost first

// Writes the strides of a tensor without gaps.
void contiguous_strides(IntArrayRef sizes, MemoryFormat format, int64_t* strides) {
  int64_t stride = 1;
  const auto set = [&](size_t d) {
    strides[d] = stride;
    stride *= std::max<int64_t>(1, sizes[d]);
  };
  if (format == MemoryFormat::ChannelsLast) {
    for (const int d : kChannelsLast) set(d);
  } else {
    for (size_t d = sizes.size(); d-- > 0;) set(d);
  }
}

}  // namespace

void fail(const std::string& message) { throw std::runtime_error(message); }

void check_status(AOTITorchError status, const char* function) {
  if (status != 0) fail(std::string("PyTorch's ") + function + " failed");
}

Tensor::Tensor(AtenTensorHandle handle) : handle_(handle) {
  bool defined = false;
  int32_t dtype = 0, device = 0, index = 0;
  DETOPS_STABLE(aoti_torch_is_defined, handle, &defined);
  if (!defined) {
    aoti_torch_delete_tensor_object(release());
    return;
  }
  int32_t layout = 0;
  int64_t *sizes = nullptr, *strides = nullptr;
  DETOPS_STABLE(aoti_torch_get_layout, handle, &layout);
  metadata_.dim = -1;
  static const int32_t strided = aoti_torch_layout_strided();
  if (layout != strided) return;
  DETOPS_STABLE(aoti_torch_get_dim, handle, &metadata_.dim);
  DETOPS_STABLE(aoti_torch_get_dtype, handle, &dtype);
  DETOPS_STABLE(aoti_torch_get_device_type, handle, &device);
  DETOPS_STABLE(aoti_torch_get_device_index, handle, &index);
  DETOPS_STABLE(aoti_torch_get_sizes, handle, &sizes);
  DETOPS_STABLE(aoti_torch_get_strides, handle, &strides);
  // PyTorch adds dtype codes but never changes one, because files contain them.
  metadata_ = {{static_cast<ScalarType>(dtype), device, index}, sizes, strides, metadata_.dim};
}

Tensor::Tensor(AtenTensorHandle handle, const Options& options, size_t dim) : handle_(handle) {
  int64_t *sizes = nullptr, *strides = nullptr;
  DETOPS_STABLE(aoti_torch_get_sizes, handle, &sizes);
  DETOPS_STABLE(aoti_torch_get_strides, handle, &strides);
  metadata_ = {options, sizes, strides, int64_t(dim)};
}

Tensor::Tensor(const Tensor& other) : metadata_(other.metadata_) {
  if (other.handle_ == nullptr) return;
  DETOPS_STABLE(aoti_torch_new_tensor_handle, other.handle_, &handle_);
}

bool Tensor::is_same(const Tensor& other) const {
  return sizes().data() == other.sizes().data();  // sizes are stored in the tensor itself
}

bool is_channels_last(const TensorMetadata& t) {
  if (t.dim != 4 || t.strides[1] == 0) return false;
  int64_t least = 0;
  for (const int d : kChannelsLast) {
    if (t.sizes[d] == 0 || t.strides[d] < least) return false;
    if (d == 0 && least == t.strides[1]) return false;  // ambiguous, counts as NCHW
    least = t.strides[d] * std::max<int64_t>(1, t.sizes[d]);
  }
  return true;
}

bool Tensor::is_contiguous(MemoryFormat format) const {
  const bool last = format == MemoryFormat::ChannelsLast;
  if (last && dim() != 4) return false;
  int64_t expected = 1;
  for (int64_t i = 0; i < dim(); ++i) {
    const int64_t d = last ? kChannelsLast[i] : dim() - 1 - i;
    if (size(d) == 0) return true;
    if (size(d) != 1 && stride(d) != expected) return false;
    expected *= size(d);
  }
  return true;
}

MemoryFormat Tensor::suggest_memory_format() const {
  return is_channels_last(metadata_) ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous;
}

const void* Tensor::const_data_ptr() const {
  const void* data = nullptr;
  DETOPS_STABLE(torch_get_const_data_ptr, handle_, &data);
  return data;
}

void* Tensor::mutable_data_ptr() const {
  void* data = nullptr;
  DETOPS_STABLE(torch_get_mutable_data_ptr, handle_, &data);
  return data;
}

void Tensor::check_dtype(ScalarType type) const {
  if (metadata_.type != type) {
    fail(std::string("expected a ") + dtype_name(type) + " tensor, got " +
         dtype_name(metadata_.type));
  }
}

Tensor Tensor::as_strided(IntArrayRef sizes, IntArrayRef strides, int64_t offset) const {
  AtenTensorHandle result = nullptr;
  DETOPS_STABLE(aoti_torch__reinterpret_tensor, handle_, int64_t(sizes.size()), sizes.data(),
                strides.data(), offset, &result);
  return Tensor(result, options(), sizes.size());
}

Tensor Tensor::view(IntArrayRef sizes) const {
  const IntArrayRef own = this->sizes();  // older headers have no ==
  if (is_contiguous() && std::equal(sizes.begin(), sizes.end(), own.begin(), own.end())) {
    return *this;
  }
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  check(is_contiguous() && count == numel(), "cannot view ", numel(), " elements as ", count);
  Sizes strides;
  contiguous_strides(sizes, MemoryFormat::Contiguous, strides.data());
  return as_strided(sizes, {strides.data(), sizes.size()});
}

Tensor Tensor::narrow(int64_t d, int64_t start, int64_t length) const {
  check(start >= 0 && length >= 0 && start + length <= size(d),
        "cannot narrow a dimension of size ", size(d), " to ", length, " from ", start);
  Sizes sizes;
  std::copy_n(metadata_.sizes, dim(), sizes.data());
  sizes[d] = length;
  return as_strided({sizes.data(), size_t(dim())}, strides(), start * stride(d));
}

Tensor Tensor::permute(IntArrayRef order) const {
  Sizes sizes, strides;
  for (size_t i = 0; i < order.size(); ++i) {
    sizes[i] = size(order[i]);
    strides[i] = stride(order[i]);
  }
  return as_strided({sizes.data(), order.size()}, {strides.data(), order.size()});
}

Tensor Tensor::transpose(int64_t a, int64_t b) const {
  Sizes order;
  for (int64_t d = 0; d < dim(); ++d) order[d] = d == a ? b : d == b ? a : d;
  return permute({order.data(), size_t(dim())});
}

Tensor Tensor::contiguous(MemoryFormat format) const& {
  return is_contiguous(format) ? *this : empty(sizes(), options(), format).copy_(*this);
}

Tensor Tensor::contiguous(MemoryFormat format) && {
  return is_contiguous(format) ? std::move(*this) : std::as_const(*this).contiguous(format);
}

Tensor Tensor::to(ScalarType type) const {
  if (metadata_.type == type) return *this;
  return empty_like(*this, options().dtype(type)).copy_(*this);
}

Tensor Tensor::clone() const { return empty_like(*this).copy_(*this); }

const Tensor& Tensor::copy_(const Tensor& from) const {
  DETOPS_STABLE(aoti_torch_copy_, handle_, from.handle_, 0);
  return *this;
}

const Tensor& Tensor::zero_() const {
  DETOPS_STABLE(aoti_torch_zero_, handle_);
  return *this;
}

const Tensor& Tensor::fill_(double value) const {
  DETOPS_STABLE(aoti_torch_aten_fill__Scalar, handle_, value);
  return *this;
}

Tensor empty(IntArrayRef sizes, const Options& options, MemoryFormat format) {
  Sizes strides;
  check(sizes.size() <= kMaxDims, "a tensor must have at most ", kMaxDims, " dimensions, got ",
        sizes.size());
  contiguous_strides(sizes, format, strides.data());
  if (Tensor reused = empty_in_arena(sizes, strides.data(), options); reused.defined())
    return reused;
  AtenTensorHandle result = nullptr;
  if (aoti_torch_empty_strided(int64_t(sizes.size()), sizes.data(), strides.data(),
                               int32_t(options.type), options.device, options.index, &result)) {
    throw std::bad_alloc();
  }
  Tensor fresh(result, options, sizes.size());
  if (fresh.is_cpu()) advise_huge_pages(fresh.mutable_data_ptr(), fresh.nbytes());
  return fresh;
}

Tensor empty_like(const Tensor& t, const Options& options) {
  return empty(t.sizes(), options, t.suggest_memory_format());
}
Tensor empty_like(const Tensor& t) { return empty_like(t, t.options()); }
Tensor zeros(IntArrayRef sizes, const Options& options) { return empty(sizes, options).zero_(); }

Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, ScalarType type) {
  AtenTensorHandle result = nullptr;
  DETOPS_STABLE(aoti_torch_create_tensor_from_blob, data, int64_t(sizes.size()), sizes.data(),
                strides.data(), 0, int32_t(type), kCPU, -1, &result);
  return Tensor(result);
}

}  // namespace detops
