// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

// Target regions: code between DETOPS_TARGET_BEGIN(...) and DETOPS_TARGET_END is compiled for that
// instruction set, whatever the build flags say. All headers must be included before the first
// region, and code inside uses no std:: templates: an out-of-line copy of one would be compiled for
// the region and shared with the rest of the program.
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define DETOPS_X86_TARGETS 1
#include <immintrin.h>
#endif

#define DETOPS_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define DETOPS_TARGET_BEGIN(features) \
  DETOPS_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define DETOPS_TARGET_END DETOPS_PRAGMA(clang attribute pop)
#elif defined(__GNUC__)
#define DETOPS_TARGET_BEGIN(features) \
  DETOPS_PRAGMA(GCC push_options) DETOPS_PRAGMA(GCC target(features))
#define DETOPS_TARGET_END DETOPS_PRAGMA(GCC pop_options)
#endif

// Vectors indexed by a loop variable stay in registers only if the loop is unrolled.
#if defined(__clang__)
#define DETOPS_UNROLL DETOPS_PRAGMA(clang loop unroll(full))
#else
#define DETOPS_UNROLL DETOPS_PRAGMA(GCC unroll 16)
#endif

#define DETOPS_AVX2 "avx2,fma,f16c,bmi,bmi2"
#define DETOPS_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2"
// That, and bits counted in vectors, which some of those processors do.
#define DETOPS_VPOPCNT "avx512vpopcntdq,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2"

namespace detops::cpu {

// The integer as wide as a T, by which vectors of T are shuffled and indexed.
template <typename T>
using lane_index_t = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;

// The instruction sets, best last. The one in use is the best that the processor has, but not above
// ATEN_CPU_CAPABILITY (default, avx2, avx512), which PyTorch honours, too; tests choose any that
// this machine can run.
enum class Isa { kBaseline, kAvx2, kAvx512 };
Isa isa();
const char* cpu_isa();

// "baseline", "avx2", "avx512", or "auto"; throws std::invalid_argument for any other name and for
// one that this processor cannot run.
void set_cpu_isa(const char* name);

}  // namespace detops::cpu
