// SPDX-License-Identifier: MIT
// Compiles the file that DETOPS_KERNELS names once per instruction set. To be included once, after
// all other headers and after the structs that the kernels take, by the file of the host functions
// that call them.
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

// A kernel of the instruction set in use: the name of a function, with its template arguments. The
// narrow one, where 64 bytes at a time are too many, is AVX2's in AVX-512's place.
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
