// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>

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
      data_.reset(new T[size]);
      size_ = size;
    }
    return data_.get();
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  std::unique_ptr<T[]> data_;
  size_t size_ = 0;
};

}  // namespace detops::cpu
