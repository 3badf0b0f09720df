// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace detops {

// Requests huge pages for a large, newly allocated block, as NumPy does. The first access to a page
// traps into the kernel. With pages of 4 KiB, these traps take longer than many ops. This is only a
// hint: the system's setting decides.
inline void advise_huge_pages([[maybe_unused]] void* block, [[maybe_unused]] size_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr size_t kMinBytes = 4 << 20;
  if (bytes < kMinBytes) return;
  const auto begin = reinterpret_cast<uintptr_t>(block);
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t first = (begin + page - 1) / page * page;
  ::madvise(reinterpret_cast<void*>(first), begin + bytes - first, MADV_HUGEPAGE);
#endif
}

}  // namespace detops
