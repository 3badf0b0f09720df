// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

// A variable of each thread. The emulation of CUDA, which runs on one thread, takes all of a
// thread's memory for that which a block shares, and overwrites it before each block.
#ifdef DETOPS_EMULATE_CUDA
#define DETOPS_PER_THREAD
#else
#define DETOPS_PER_THREAD thread_local
#endif

// PyTorch's threads.
namespace detops {

int get_num_threads();
bool in_parallel_region();

// What one thread takes at least, and no more than the limit: tests let threads share small loops.
int64_t grain_of(int64_t usual);
void limit_grain(int64_t most);
// How many loops threads have shared.
int64_t shared_loops();

// Calls body(context, begin, end) for parts of [0, count) of at least `grain`.
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

// Calls each(i) for all i below `count`, of which a thread takes at least `grain`.
template <typename Each>
void parallel_each(int64_t count, int64_t grain, const Each& each) {
  parallel_for(count, grain, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) each(i);
  });
}

}  // namespace detops
