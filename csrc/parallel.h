// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

// Storage class of a per-thread variable. The CUDA emulation uses thread_local variables as the
// shared memory of a block and overwrites all of them before each block. It runs on one thread, so
// it needs no thread_local here.
#ifdef DETOPS_EMULATE_CUDA
#define DETOPS_PER_THREAD
#else
#define DETOPS_PER_THREAD thread_local
#endif

// Parallel loops on PyTorch's threads.
namespace detops {

int get_num_threads();
bool in_parallel_region();

// Returns the minimum number of items per thread: `grain`, or the limit if that is lower. Tests set
// a limit to run small loops in parallel.
int64_t effective_grain(int64_t grain);
void limit_grain(int64_t most);
// Returns the number of loops that ran on several threads.
int64_t shared_loops();

// Calls body(context, begin, end) for parts of [0, count) with at least `grain` items each.
void parallel_for(int64_t count, int64_t grain,
                  void (*body)(const void* context, int64_t begin, int64_t end),
                  const void* context);

template <typename Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  parallel_for(
      count, grain,
      [](const void* context, int64_t from, int64_t to) {
        (*static_cast<const Body*>(context))(from, to);
      },
      &body);
}

// Calls each(i) for all i below `count`. A thread gets at least `grain` of them.
template <typename Each>
void parallel_each(int64_t count, int64_t grain, const Each& each) {
  parallel_for(count, grain, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) each(i);
  });
}

}  // namespace detops
