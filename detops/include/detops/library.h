// SPDX-License-Identifier: MIT
#pragma once

// What the library tells of itself, for C and whatever calls C.
#ifdef __cplusplus
extern "C" {
#endif

#define DETOPS_EXPORT __attribute__((visibility("default")))

// The ops that it has registered.
DETOPS_EXPORT int detops_op_count(void);
DETOPS_EXPORT const char* detops_op_name(int i);
// The text of csrc/contract/*.contract.
DETOPS_EXPORT const char* detops_contracts(void);

// The instruction set in use: "baseline", "avx2" or "avx512".
DETOPS_EXPORT const char* detops_cpu_isa(void);
// Forces one, or "auto" for the best that the processor has. An error message, or null.
DETOPS_EXPORT const char* detops_set_cpu_isa(const char* name);

// Whether large results of ops in this thread take memory that stays when they go, for the next
// ones; what was before. The bytes that are kept so, and those of them that no tensor has; and a
// call that gives the latter back to the system.
DETOPS_EXPORT int detops_use_arena(int on);
DETOPS_EXPORT void detops_arena_size(long long* held, long long* free);
DETOPS_EXPORT void detops_release_arena(void);

// Lets a thread take no more of a loop at least than `most`, so that small ones are shared; and how
// many loops threads have shared. For tests.
DETOPS_EXPORT void detops_limit_grain(long long most);
DETOPS_EXPORT long long detops_shared_loops(void);

// The message of the error that an op of the library last raised in this thread, or what was set
// since. PyTorch's C functions give back that an op failed, and not always why.
DETOPS_EXPORT const char* detops_last_error(void);
DETOPS_EXPORT void detops_set_last_error(const char* message);

// Whether its CPU ops are the CUDA kernels, emulated: for tests.
DETOPS_EXPORT int detops_is_emulated(void);

// Of the library of CUDA's ops alone: the version of the toolkit, 13000 for 13.0.
DETOPS_EXPORT int detops_cuda_version(void);

#ifdef __cplusplus
}
#endif
