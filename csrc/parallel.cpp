// SPDX-License-Identifier: MIT
#include "parallel.h"

#include <exception>
#include <mutex>

#include "tensor.h"

namespace detops {
namespace {

DETOPS_PER_THREAD bool inside = false;

struct Work {
  void (*body)(const void*, int64_t, int64_t);
  const void* context;
  std::mutex mutex;
  std::exception_ptr error;  // the first one: none may pass through PyTorch's C functions

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

int get_num_threads() {
  uint32_t count = 1;
  DETOPS_STABLE(torch_get_num_threads, &count);
  return static_cast<int>(count);
}

void parallel_for(int64_t count, int64_t grain, void (*body)(const void*, int64_t, int64_t),
                  const void* context) {
  if (count <= 0) return;
  if (count <= grain || inside || get_num_threads() == 1) return body(context, 0, count);
  Work work{body, context, {}, nullptr};
  const auto run = [](int64_t from, int64_t to, void* each) {
    static_cast<Work*>(each)->run(from, to);
  };
  DETOPS_STABLE(torch_parallel_for, 0, count, grain, run, &work);
  if (work.error) std::rethrow_exception(work.error);
}

}  // namespace detops
