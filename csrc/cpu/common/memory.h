// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "../../ops.h"
#include "element_type.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace detops::cpu {

// To be called for a fresh output that will be written as a whole: asks for huge pages, as NumPy
// does for its large arrays. The first touch of a page is a trap into the kernel, and at 4 KiB a
// page these cost more than many an op. Only a hint: the system's setting decides.
inline void expect_writes(const Tensor& fresh) {
#if defined(MADV_HUGEPAGE)
  constexpr int64_t kWorthwhile = 4 << 20;
  if (fresh.nbytes() < kWorthwhile) return;
  const auto begin = reinterpret_cast<uintptr_t>(fresh.mutable_data_ptr());
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t first = (begin + page - 1) / page * page;
  ::madvise(reinterpret_cast<void*>(first), begin + fresh.nbytes() - first, MADV_HUGEPAGE);
#else
  (void)fresh;
#endif
}

// x.contiguous(format). The gradient of a sum is one number, expanded: to write it down takes less
// than a general copy, which takes longer than a small op.
inline Tensor in_layout(const Tensor& x, MemoryFormat format) {
  if (x.numel() <= 1 || !is_constant(x)) return x.contiguous(format);
  Tensor copy = empty(x.sizes(), x.options(), format);
  with_element_type(x.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const T value = *static_cast<const T*>(x.const_data_ptr());
    std::fill_n(static_cast<T*>(copy.mutable_data_ptr()), copy.numel(), value);
  });
  return copy;
}

}  // namespace detops::cpu
