// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

#include "../../huge_pages.h"

namespace detops::cpu {

// Uninitialised scratch memory: a std::vector would write every byte once for nothing. Growing
// discards the contents.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size) { reserve(size); }

  T* reserve(size_t size) {
    if (data_ == nullptr || size > size_) {
      data_.reset();
      void* memory = ::operator new(size * sizeof(T) + kSlack);
      advise_huge_pages(memory, size * sizeof(T) + kSlack);
      const auto begin = reinterpret_cast<uintptr_t>(memory);
      data_ = {reinterpret_cast<T*>((begin + kSlack) & ~uintptr_t(kSlack)), Free{memory}};
      size_ = size;
    }
    return data();
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  // Memory starts at a cache line. A vector that straddles two lines costs two loads, and an
  // aligned allocation takes several times as long as an unaligned one. For AddressSanitizer, the
  // last byte of the memory must be that of the last element.
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kSlack = 0;
#else
  static constexpr size_t kSlack = 63;
#endif
  struct Free {
    void* memory;
    void operator()(T*) const { ::operator delete(memory); }
  };
  static_assert(std::is_trivially_default_constructible_v<T>);

  std::unique_ptr<T[], Free> data_;
  size_t size_ = 0;
};

}  // namespace detops::cpu
