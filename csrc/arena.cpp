// SPDX-License-Identifier: MIT
#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>

#include "huge_pages.h"
#include "parallel.h"
#include "tensor.h"

#if defined(__linux__) && !defined(DETOPS_EMULATE_CUDA)
#include <sys/mman.h>
#include <unistd.h>

// New in PyTorch 2.11. Without it there is no arena.
extern "C" __attribute__((weak)) AOTITorchError
torch_from_blob(void* data, int64_t dim, const int64_t* sizes, const int64_t* strides,
                int64_t offset, int32_t dtype, int32_t device, int32_t index,
                AtenTensorHandle* result, int32_t layout, const uint8_t* metadata,
                int64_t metadata_size, void (*deleter)(void* data, void* context), void* context);
#define DETOPS_ARENA 1
#endif

namespace detops {

static DETOPS_PER_THREAD bool enabled = false;
bool use_arena(bool on) { return std::exchange(enabled, on); }

#ifdef DETOPS_ARENA
namespace {

constexpr size_t kMinBytes = 1 << 20;      // the C library itself reuses smaller blocks
constexpr size_t kGranularity = 64 << 10;  // block sizes are multiples of this
constexpr size_t kHugePage = 2 << 20;      // size of a huge page

// A range of addresses. Allocates the first block that is large enough. Pages become resident when
// they are first touched, so the arena holds at most the peak of memory in use, plus some gaps.
class Arena {
 public:
  Arena() {
    const auto pages = static_cast<size_t>(::sysconf(_SC_PHYS_PAGES));
    size_ = pages / 2 * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) / kHugePage * kHugePage;
    void* range = ::mmap(nullptr, size_ + kHugePage, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) return;
    const auto first = (reinterpret_cast<uintptr_t>(range) + kHugePage - 1) / kHugePage * kHugePage;
    begin_ = reinterpret_cast<char*>(first);
    advise_huge_pages(begin_, size_);
    free_.emplace(0, size_);
  }

  // Returns null if there is no room.
  char* allocate(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find_if(free_.begin(), free_.end(),
                                    [&](const auto& block) { return block.second >= bytes; });
    if (found == free_.end()) return nullptr;
    const auto [offset, size] = *found;
    free_.erase(found);
    if (size > bytes) free_.emplace(offset + bytes, size - bytes);
    resident_end_ = std::max(resident_end_, offset + bytes);
    return begin_ + offset;
  }

  void free(char* block, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto merged = free_.emplace(block - begin_, bytes).first;
    if (const auto next = std::next(merged);
        next != free_.end() && merged->first + merged->second == next->first) {
      merged->second += next->second;
      free_.erase(next);
    }
    if (merged == free_.begin()) return;
    if (const auto previous = std::prev(merged);
        previous->first + previous->second == merged->first) {
      previous->second += merged->second;
      free_.erase(merged);
    }
  }

  void release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [offset, bytes] : free_) {
      if (offset < resident_end_)
        ::madvise(begin_ + offset, std::min(bytes, resident_end_ - offset), MADV_DONTNEED);
    }
    if (free_.empty()) return;
    const auto last = std::prev(free_.end());
    if (last->first + last->second == size_) resident_end_ = last->first;
  }

  ArenaSize size() {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t free = 0;
    for (const auto& [offset, bytes] : free_) {
      if (offset < resident_end_) free += std::min(bytes, resident_end_ - offset);
    }
    return {int64_t(resident_end_), int64_t(free)};
  }

 private:
  std::mutex mutex_;
  char* begin_ = nullptr;
  size_t size_ = 0;
  size_t resident_end_ = 0;        // end of the part that may be resident
  std::map<size_t, size_t> free_;  // offset and size of each free block
};

// Never destroyed: tensors may live longer than any static object.
Arena& arena() {
  static Arena& arena = *new Arena();
  return arena;
}

}  // namespace

Tensor empty_in_arena(IntArrayRef sizes, const int64_t* strides, const Options& options) {
  if (!enabled || options.device != kCPU) return {};
  size_t bytes = aoti_torch_dtype_element_size(int32_t(options.type));
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes)) return {};
  }
  if (bytes < kMinBytes || bytes > SIZE_MAX - kGranularity || torch_from_blob == nullptr) return {};
  bytes = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  char* data = arena().allocate(bytes);
  if (data == nullptr) return {};
  AtenTensorHandle result = nullptr;
  const AOTITorchError status = torch_from_blob(
      data, int64_t(sizes.size()), sizes.data(), strides, 0, int32_t(options.type), options.device,
      options.index, &result, aoti_torch_layout_strided(), nullptr, 0,
      [](void* block, void* size) {
        arena().free(static_cast<char*>(block), reinterpret_cast<size_t>(size));
      },
      reinterpret_cast<void*>(bytes));
  if (status == AOTI_TORCH_SUCCESS) return Tensor(result);
  arena().free(data, bytes);
  return {};
}

ArenaSize arena_size() { return arena().size(); }
void release_arena() { arena().release(); }

#else

Tensor empty_in_arena(IntArrayRef, const int64_t*, const Options&) { return {}; }
ArenaSize arena_size() { return {}; }
void release_arena() {}

#endif

}  // namespace detops
