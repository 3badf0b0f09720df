// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

// Target regions: code between DETOPS_TARGET_BEGIN(...) and DETOPS_TARGET_END is compiled for that
// instruction set, regardless of the build flags. Include all headers before the first region, and
// use no std:: templates inside one: an out-of-line copy of a template would be compiled for the
// region and shared with the rest of the program.
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
// DETOPS_AVX512 and vector population counts. Only some of those processors support these.
#define DETOPS_VPOPCNT "avx512vpopcntdq,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2"

namespace detops::cpu {

// The integer type as wide as T, to shuffle and index vectors of T.
template <typename T>
using lane_index_t = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;

// The instruction sets, best last. isa() is the best one that the processor supports, but not above
// ATEN_CPU_CAPABILITY (default, avx2, avx512), as in PyTorch. Tests choose any that this machine
// can run.
enum class Isa { kBaseline, kAvx2, kAvx512 };
Isa isa();
const char* cpu_isa();

// Accepts "baseline", "avx2", "avx512" or "auto". Throws std::invalid_argument for any other name
// and for an instruction set that this processor cannot run.
void set_cpu_isa(const char* name);

}  // namespace detops::cpu
