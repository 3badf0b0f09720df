// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor.h"

// Memory for large tensors on the CPU that stays when they go, for the next ones. The C library
// gives each such block back to the system, and the system clears page after page for the next: a
// detector has more than a gigabyte of maps an image, and a fifth of its time goes there.
namespace detops {

// Whether large tensors that the ops make in this thread are taken from the arena; what was before.
bool use_arena(bool on);

// Undefined where they are not, or the arena has no room, or nothing that it would be worth.
Tensor empty_in_arena(IntArrayRef sizes, const int64_t* strides, const Options& options);

// Bytes that the arena holds, and of those, which no tensor has.
struct ArenaSize {
  int64_t held, free;
};
ArenaSize arena_size();

// Gives what no tensor has back to the system.
void release_arena();

}  // namespace detops
