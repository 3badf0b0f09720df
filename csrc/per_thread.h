// SPDX-License-Identifier: MIT
#pragma once

// A variable of each thread. The emulation of CUDA, which runs on one thread, takes all of a
// thread's memory for that which a block shares, and overwrites it before each block.
#ifdef DETOPS_EMULATE_CUDA
#define DETOPS_PER_THREAD
#else
#define DETOPS_PER_THREAD thread_local
#endif
