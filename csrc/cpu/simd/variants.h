// SPDX-License-Identifier: MIT
// Compiles the file that DETOPS_KERNELS names once per instruction set. To be included once, behind
// all other headers, by a file of kernels. With DETOPS_NARROW_VECTORS, where 64 bytes at a time are
// too many, AVX2's kernels stand in for AVX-512's.
#include "../../math/half.h"
#include "isa.h"

namespace detops::cpu {

namespace baseline {
#define DETOPS_VECTOR_BYTES 16
#include "simd.inl"
//
#include DETOPS_KERNELS
#undef DETOPS_VECTOR_BYTES
#undef DETOPS_INLINE
}  // namespace baseline

#ifdef DETOPS_X86_TARGETS
DETOPS_TARGET_BEGIN(DETOPS_AVX2)
namespace avx2 {
#define DETOPS_VECTOR_BYTES 32
#include "simd.inl"
//
#include DETOPS_KERNELS
#undef DETOPS_VECTOR_BYTES
#undef DETOPS_INLINE
}  // namespace avx2
DETOPS_TARGET_END

#ifdef DETOPS_NARROW_VECTORS
namespace avx512 = avx2;
#else
DETOPS_TARGET_BEGIN(DETOPS_AVX512)
namespace avx512 {
#define DETOPS_VECTOR_BYTES 64
#include "simd.inl"
//
#include DETOPS_KERNELS
#undef DETOPS_VECTOR_BYTES
#undef DETOPS_INLINE
}  // namespace avx512
DETOPS_TARGET_END
#endif
#endif

}  // namespace detops::cpu

// The table `name`, a constant at the end of the .inl file, of the instruction set in use. Tables
// are constant-initialised: no code of a target region runs at load time.
#ifdef DETOPS_X86_TARGETS
#define DETOPS_IN_USE(name) \
  (isa() == Isa::kAvx512 ? avx512::name : isa() == Isa::kAvx2 ? avx2::name : baseline::name)
#else
#define DETOPS_IN_USE(name) (baseline::name)
#endif
