// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

namespace detops::cpu {

// Scratch memory that is not cleared: a std::vector would write every byte once for nothing.
// Growing loses the content.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size) { reserve(size); }

  T* reserve(size_t size) {
    if (size > size_) {
      data_.reset();
      data_.reset(static_cast<T*>(::operator new(size * sizeof(T), kLine)));
      size_ = size;
    }
    return data_.get();
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  // A vector that begins within a line of cache and ends in the next costs two loads.
  static constexpr std::align_val_t kLine{64};
  struct Free {
    void operator()(T* data) const { ::operator delete(data, kLine); }
  };
  static_assert(std::is_trivially_default_constructible_v<T>);

  std::unique_ptr<T[], Free> data_;
  size_t size_ = 0;
};

}  // namespace detops::cpu
