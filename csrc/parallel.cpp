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

DETOPS_PER_THREAD bool in_parallel = false;
std::atomic<int64_t> max_grain{std::numeric_limits<int64_t>::max()};
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
    const bool was_in_parallel = in_parallel;
    in_parallel = true;
    try {
      body(context, begin, end);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!error) error = std::current_exception();
    }
    in_parallel = was_in_parallel;
  }
};

}  // namespace

bool in_parallel_region() { return in_parallel; }

int64_t effective_grain(int64_t grain) {
  return std::min(grain, max_grain.load(std::memory_order_relaxed));
}

void limit_grain(int64_t most) { max_grain = most; }

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
  grain = effective_grain(grain);
  if (count <= grain || in_parallel || get_num_threads() == 1) return body(context, 0, count);
  ++loops;
  Work work{body, context, {}, nullptr};
  const auto run = [](int64_t from, int64_t to, void* data) {
    static_cast<Work*>(data)->run(from, to);
  };
  DETOPS_STABLE(torch_parallel_for, 0, count, grain, run, &work);
  if (work.error) std::rethrow_exception(work.error);
}

}  // namespace detops
