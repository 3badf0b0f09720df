// SPDX-License-Identifier: MIT
#pragma once

// C functions to inspect and configure the library, for C and other languages that call C.
#ifdef __cplusplus
extern "C" {
#endif

#define DETOPS_EXPORT __attribute__((visibility("default")))

// The number and the names of the ops that the library has registered.
DETOPS_EXPORT int detops_op_count(void);
DETOPS_EXPORT const char* detops_op_name(int i);
// The text of csrc/contract/*.contract.
DETOPS_EXPORT const char* detops_contracts(void);

// The instruction set in use: "baseline", "avx2" or "avx512".
DETOPS_EXPORT const char* detops_cpu_isa(void);
// Forces an instruction set, or with "auto" selects the best that the processor supports. Returns
// an error message, or null on success.
DETOPS_EXPORT const char* detops_set_cpu_isa(const char* name);

// The arena keeps the memory of large results when they are freed, and reuses it for later ones.
// detops_use_arena turns it on or off for ops in this thread, and returns the previous setting.
// detops_arena_size gives the bytes that the arena holds, and how many of them no tensor uses.
// detops_release_arena returns the latter to the system.
DETOPS_EXPORT int detops_use_arena(int on);
DETOPS_EXPORT void detops_arena_size(long long* held, long long* free);
DETOPS_EXPORT void detops_release_arena(void);

// For tests. detops_limit_grain limits the minimum number of iterations per thread to `most`, so
// that threads share small loops too. detops_shared_loops returns how many loops threads have
// shared.
DETOPS_EXPORT void detops_limit_grain(long long most);
DETOPS_EXPORT long long detops_shared_loops(void);

// The message of the last error that an op of the library raised in this thread, or the message set
// since. PyTorch's C functions report that an op failed, but not always why.
DETOPS_EXPORT const char* detops_last_error(void);
DETOPS_EXPORT void detops_set_last_error(const char* message);

// For tests: whether the CPU ops are the CUDA kernels, emulated.
DETOPS_EXPORT int detops_is_emulated(void);

// Only in the library of the CUDA ops: the version of the CUDA toolkit, 13000 for 13.0.
DETOPS_EXPORT int detops_cuda_version(void);

#ifdef __cplusplus
}
#endif
