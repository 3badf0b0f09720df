// SPDX-License-Identifier: MIT
// Compiles the file that DETOPS_KERNELS names once per instruction set. Include this header once,
// in the file of the host functions that call these kernels, after all other headers and after the
// structs that the kernels use.
#include <cmath>

#include "../../math/half.h"
#include "isa.h"

namespace detops::cpu {

namespace baseline {
#define DETOPS_VECTOR_BYTES 16
#include "simd.inl"
//
#include DETOPS_KERNELS
#undef DETOPS_VECTOR_BYTES
}  // namespace baseline

#ifdef DETOPS_X86_TARGETS
DETOPS_TARGET_BEGIN(DETOPS_AVX2)
namespace avx2 {
#define DETOPS_VECTOR_BYTES 32
#include "simd.inl"
//
#include DETOPS_KERNELS
#undef DETOPS_VECTOR_BYTES
}  // namespace avx2
DETOPS_TARGET_END

DETOPS_TARGET_BEGIN(DETOPS_AVX512)
namespace avx512 {
#define DETOPS_VECTOR_BYTES 64
#include "simd.inl"
//
#include DETOPS_KERNELS
#undef DETOPS_VECTOR_BYTES
}  // namespace avx512
DETOPS_TARGET_END
#endif

}  // namespace detops::cpu

// DETOPS_IN_USE selects a kernel for the instruction set in use: the name of a function, with its
// template arguments. DETOPS_NARROW_IN_USE selects the AVX2 kernel on AVX-512, where vectors of 64
// bytes are too wide.
#ifdef DETOPS_X86_TARGETS
#define DETOPS_IN_USE(...)                     \
  (isa() == Isa::kAvx512 ? avx512::__VA_ARGS__ \
   : isa() == Isa::kAvx2 ? avx2::__VA_ARGS__   \
                         : baseline::__VA_ARGS__)
#define DETOPS_NARROW_IN_USE(...) \
  (isa() == Isa::kBaseline ? baseline::__VA_ARGS__ : avx2::__VA_ARGS__)
#else
#define DETOPS_IN_USE(...) (baseline::__VA_ARGS__)
#define DETOPS_NARROW_IN_USE(...) (baseline::__VA_ARGS__)
#endif
