// SPDX-License-Identifier: MIT
#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>

#ifndef _WIN32
#include <pthread.h>
#endif

#include "tensor.h"

namespace detops {
namespace {

DETOPS_PER_THREAD bool inside = false;
std::atomic<int64_t> most_grain{std::numeric_limits<int64_t>::max()};
std::atomic<int64_t> loops{0};

// A forked process has none of its parent's worker threads, but the state of OpenMP still counts
// them. A parallel loop would wait for them forever.
std::atomic<bool> lost_threads{false};
#ifndef _WIN32
const int registered = pthread_atfork(nullptr, nullptr, [] { lost_threads = loops > 0; });
#endif

struct Work {
  void (*body)(const void*, int64_t, int64_t);
  const void* context;
  std::mutex mutex;
  std::exception_ptr error;  // the first one; PyTorch's C functions cannot propagate exceptions

  void run(int64_t begin, int64_t end) {
    const bool before = inside;
    inside = true;
    try {
      body(context, begin, end);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!error) error = std::current_exception();
    }
    inside = before;
  }
};

}  // namespace

bool in_parallel_region() { return inside; }

int64_t grain_of(int64_t usual) {
  return std::min(usual, most_grain.load(std::memory_order_relaxed));
}

void limit_grain(int64_t most) { most_grain = most; }

int64_t shared_loops() { return loops; }

int get_num_threads() {
  if (lost_threads.load(std::memory_order_relaxed)) return 1;
  uint32_t count = 1;
  DETOPS_STABLE(torch_get_num_threads, &count);
  return static_cast<int>(count);
}

void parallel_for(int64_t count, int64_t grain, void (*body)(const void*, int64_t, int64_t),
                  const void* context) {
  if (count <= 0) return;
  grain = grain_of(grain);
  if (count <= grain || inside || get_num_threads() == 1) return body(context, 0, count);
  ++loops;
  Work work{body, context, {}, nullptr};
  const auto run = [](int64_t from, int64_t to, void* each) {
    static_cast<Work*>(each)->run(from, to);
  };
  DETOPS_STABLE(torch_parallel_for, 0, count, grain, run, &work);
  if (work.error) std::rethrow_exception(work.error);
}

}  // namespace detops
