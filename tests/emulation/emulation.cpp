// SPDX-License-Identifier: MIT
#include "emulation.h"

#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
constexpr size_t kStackPages = 64;  // AddressSanitizer uses more stack
#else
#define ASAN_UNPOISON_MEMORY_REGION(memory, size)
constexpr size_t kStackPages = 16;
#endif

namespace detops::cuda::emulation {

#ifndef __x86_64__
#error "EMULATE_CUDA=1 requires x86-64"
#endif

// Saves the current stack in `from` and resumes the one in `to`. swapcontext would work too, but it
// makes a system call for the signal mask each time and is ten times slower.
extern "C" void detops_switch_stack(void** from, void* to);
asm(R"(
.text
.local detops_switch_stack
.type detops_switch_stack, @function
detops_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

dim3 block_index, block_count, thread_index, thread_count;
unsigned char* dynamic_memory;

namespace {

// Not a power of two, so that the tops of the stacks fall into different cache sets.
constexpr size_t kStack = (kStackPages << 12) + 320;
constexpr unsigned kWarp = 32;

void require(bool condition, const char* message) {
  if (!condition) throw std::runtime_error(message);
}

// A barrier for the threads of a block or of a warp.
struct Barrier {
  unsigned members = 0, arrived = 0;
  uint64_t generation = 0;

  void release() {
    arrived = 0;
    ++generation;
  }
};

struct Warp {
  Barrier barrier;
  // Used in turn: once all lanes have reached one array, all have read the other.
  uint64_t values[2][kWarp];
};

using Stack = std::unique_ptr<unsigned char[]>;

struct Thread {
  void* top = nullptr;  // saved stack pointer
  Stack stack;          // while it runs
  bool done = false;
  const Barrier* waiting_on = nullptr;
  uint64_t target_generation = 0;

  bool ready() const {
    return !done && (waiting_on == nullptr || waiting_on->generation >= target_generation);
  }
};

// Only one grid runs at a time, whichever thread launches it.
std::mutex running;
void* scheduler;
std::vector<Thread> threads;
std::vector<Stack> unused_stacks;  // threads that never wait share one, which stays in the cache
std::vector<Warp> warps;
Barrier block;
unsigned current;
bool backwards;
const std::function<void()>* kernel_body;
bool incomplete_vote;
thread_local unsigned char shared_anchor;  // its address locates the __shared__ variables

struct Memory {
  unsigned char* begin = nullptr;
  size_t size = 0;

  // One bits, so that reads of uninitialised memory give NaN.
  void poison() const { std::fill_n(begin, size, static_cast<unsigned char>(0xff)); }
};

// Returns the memory of all __shared__ variables of this library, which are all of its thread_local
// variables: it has no others.
Memory shared_memory() {
  Memory shared;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        auto* memory = static_cast<unsigned char*>(info->dlpi_tls_data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          const bool ours = segment.p_type == PT_TLS && memory != nullptr &&
                            &shared_anchor >= memory && &shared_anchor < memory + segment.p_memsz;
          if (!ours) continue;
          *static_cast<Memory*>(result) = {memory, segment.p_memsz};
          return 1;
        }
        return 0;
      },
      &shared);
  return shared;
}

// Removes a thread that has ended from a barrier, so that the other threads can pass it.
void leave(Barrier& barrier) {
  --barrier.members;
  if (barrier.members > 0 && barrier.arrived == barrier.members) barrier.release();
}

void run_thread() {
  (*kernel_body)();
  threads[current].done = true;
  leave(warps[current / kWarp].barrier);
  leave(block);
  detops_switch_stack(&threads[current].top, scheduler);
}

void start(Thread& thread) {
  if (unused_stacks.empty()) unused_stacks.emplace_back(new unsigned char[kStack]);
  thread.stack = std::move(unused_stacks.back());
  unused_stacks.pop_back();
  // The previous thread on this stack never returned from its first function.
  ASAN_UNPOISON_MEMORY_REGION(thread.stack.get(), kStack);
  // Six registers, the address for `ret`, and one slot that aligns the stack as after a call.
  auto* top = reinterpret_cast<void**>(thread.stack.get() + kStack) - 8;
  std::fill_n(top, 8, nullptr);
  top[6] = reinterpret_cast<void*>(run_thread);
  thread.top = top;
}

// Makes the next lane of this warp that can continue the current one. Returns null if none can.
Thread* next_lane() {
  const unsigned first = current / kWarp * kWarp;
  const unsigned lanes = std::min<unsigned>(kWarp, threads.size() - first);
  const unsigned step = backwards ? lanes - 1 : 1;
  unsigned lane = current - first;
  for (unsigned i = 0; i < lanes; ++i) {
    lane = lane + step < lanes ? lane + step : lane + step - lanes;
    if (!threads[first + lane].ready()) continue;
    current = first + lane;
    return &threads[current];
  }
  return nullptr;
}

void resume(Thread& thread, void** from) {
  if (!thread.stack) start(thread);
  thread_index.x = current;
  detops_switch_stack(from, thread.top);
}

void wait(Barrier& barrier) {
  Thread& thread = threads[current];
  thread.waiting_on = &barrier;
  thread.target_generation = barrier.generation + 1;
  if (++barrier.arrived == barrier.members) barrier.release();
  if (!thread.ready()) {
    Thread* next = next_lane();
    next ? resume(*next, &thread.top) : detops_switch_stack(&thread.top, scheduler);
  }
  thread.waiting_on = nullptr;
}

void run_block(unsigned count) {
  block = {count};
  threads = std::vector<Thread>(count);
  warps.assign((count + kWarp - 1) / kWarp, {});
  for (unsigned i = 0; i < count; ++i) ++warps[i / kWarp].barrier.members;
  while (block.members > 0) {
    bool progressed = false;
    for (unsigned i = 0; i < warps.size(); ++i) {
      const unsigned first = kWarp * (backwards ? warps.size() - 1 - i : i);
      // Runs a warp as long as it can continue: its stacks are in the cache.
      current = backwards ? first : std::min(first + kWarp, count) - 1;
      while (Thread* lane = next_lane()) {
        resume(*lane, &scheduler);
        if (threads[current].done) unused_stacks.push_back(std::move(threads[current].stack));
        progressed = true;
      }
    }
    require(progressed, "detops: the threads of a block wait at different barriers");
  }
  require(!incomplete_vote, "detops: a warp voted without all of its threads");
}

}  // namespace

void block_barrier() { wait(block); }

const uint64_t* exchange(uint64_t value) {
  Warp& warp = warps[current / kWarp];
  incomplete_vote = incomplete_vote || warp.barrier.members < kWarp;
  auto& values = warp.values[warp.barrier.generation % 2];
  values[current % kWarp] = value;
  wait(warp.barrier);
  return values;
}

void run(dim3 blocks, unsigned count, size_t shared, const std::function<void()>& body) {
  const std::lock_guard<std::mutex> lock(running);
  require(count > 0 && count <= 1024 && blocks.y <= 65535 && blocks.z <= 65535,
          "detops: the launch exceeds the limits of a GPU");
  const char* mode = std::getenv("DETOPS_EMULATION");
  backwards = mode != nullptr && std::strcmp(mode, "backwards") == 0;
  std::vector<unsigned char> memory(shared);
  dynamic_memory = memory.data();
  kernel_body = &body;
  incomplete_vote = false;
  shared_anchor = 0;
  block_count = blocks;
  thread_count = {count, 1, 1};
  thread_index = {0, 0, 0};
  const Memory statically_sized = shared_memory(), dynamic{memory.data(), shared};
  const unsigned total_blocks = blocks.x * blocks.y * blocks.z;
  for (unsigned i = 0; i < total_blocks; ++i) {
    const unsigned n = backwards ? total_blocks - 1 - i : i;
    block_index = {n % blocks.x, n / blocks.x % blocks.y, n / blocks.x / blocks.y};
    statically_sized.poison();
    dynamic.poison();
    run_block(count);
  }
}

}  // namespace detops::cuda::emulation
