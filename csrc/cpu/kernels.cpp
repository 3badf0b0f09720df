// SPDX-License-Identifier: MIT
#include "kernels.h"

#include <ATen/Version.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "../math/box.h"
#include "isa.h"

namespace detops::cpu {

#define DETOPS_NMS_KERNELS(T) {nms_flat<T>, nms_grid<T>, nms_strip<T>, nms_suppressed<T>}
#define DETOPS_OVERLAP_KERNELS(T)                                                \
  {{overlap_row<math::Overlap::kIoU, T>, overlap_row<math::Overlap::kGIoU, T>,   \
    overlap_row<math::Overlap::kDIoU, T>, overlap_row<math::Overlap::kCIoU, T>}, \
   overlap_best<T>}
#define DETOPS_ROI_KERNELS(T)                 \
  {roi_align_forward<T>,                      \
   roi_align_forward_lanes<accumulate_t<T>>,  \
   roi_align_backward_lanes<accumulate_t<T>>, \
   planes_to_lanes<T>,                        \
   lanes_to_planes<T>,                        \
   rows_to_lanes<T>,                          \
   lanes_to_rows<T>}
#define DETOPS_MLP_KERNELS(T) {mlp_forward<T>, mlp_backward<T>}
#define DETOPS_LLTM_KERNELS(T)                                                             \
  {kBackVectors * kLanes<T>, lltm_pack_forward<T>, lltm_pack_backward<T>, lltm_forward<T>, \
   lltm_backward<T>}
#define DETOPS_KERNEL_TABLE(name)                                    \
  const Kernels table{name,                                          \
                      DETOPS_NMS_KERNELS(float),                     \
                      DETOPS_NMS_KERNELS(double),                    \
                      DETOPS_OVERLAP_KERNELS(float),                 \
                      DETOPS_OVERLAP_KERNELS(double),                \
                      DETOPS_ROI_KERNELS(float),                     \
                      DETOPS_ROI_KERNELS(double),                    \
                      DETOPS_ROI_KERNELS(Half),                      \
                      DETOPS_ROI_KERNELS(BFloat16),                  \
                      DETOPS_MLP_KERNELS(float),                     \
                      DETOPS_MLP_KERNELS(double),                    \
                      {small_product<float>, turned_product<float>}, \
                      DETOPS_LLTM_KERNELS(float),                    \
                      DETOPS_LLTM_KERNELS(double)};

namespace baseline {
#define DETOPS_VECTOR_BYTES 16
#include "variant.inl"
#undef DETOPS_VECTOR_BYTES
#undef DETOPS_INLINE
DETOPS_KERNEL_TABLE("baseline")
}  // namespace baseline

#ifdef DETOPS_X86_TARGETS
DETOPS_TARGET_BEGIN(DETOPS_AVX2)
namespace avx2 {
#define DETOPS_VECTOR_BYTES 32
#include "variant.inl"
#undef DETOPS_VECTOR_BYTES
#undef DETOPS_INLINE
}  // namespace avx2
DETOPS_TARGET_END

DETOPS_TARGET_BEGIN(DETOPS_AVX512)
namespace avx512 {
#define DETOPS_VECTOR_BYTES 64
#include "variant.inl"
#undef DETOPS_VECTOR_BYTES
#undef DETOPS_INLINE
}  // namespace avx512
DETOPS_TARGET_END

// Outside the regions: the initialisers run at load time, on any processor.
namespace avx2 {
DETOPS_KERNEL_TABLE("avx2")
}
namespace avx512 {
DETOPS_KERNEL_TABLE("avx512")
}
#endif

namespace {

// A processor that PyTorch calls AVX512 has the four subsets that DETOPS_AVX512 names; the checks
// below guard a name forced by hand.
bool runs_here(const Kernels& table) {
#ifdef DETOPS_X86_TARGETS
  if (&table == &avx512::table) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
  if (&table == &avx2::table) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }
#endif
  return &table == &baseline::table;
}

const Kernels& best() {
#ifdef DETOPS_X86_TARGETS
  const std::string capability = at::get_cpu_capability();
  if (capability == "AVX512" && runs_here(avx512::table)) return avx512::table;
  if (capability != "DEFAULT" && runs_here(avx2::table)) return avx2::table;
#endif
  return baseline::table;
}

std::atomic<const Kernels*>& chosen() {
  static std::atomic<const Kernels*> table{&best()};
  return table;
}

}  // namespace

const Kernels& kernels() { return *chosen().load(std::memory_order_relaxed); }

const char* cpu_isa() { return kernels().isa; }

void set_cpu_isa(const char* name) {
  const std::string wanted = name;
  if (wanted == "auto") {
    chosen() = &best();
    return;
  }
  const Kernels* tables[] = {
      &baseline::table,
#ifdef DETOPS_X86_TARGETS
      &avx2::table,
      &avx512::table,
#endif
  };
  for (const Kernels* table : tables) {
    if (wanted != table->isa) continue;
    if (!runs_here(*table)) {
      throw std::invalid_argument("detops.set_cpu_isa: this processor cannot run " + wanted);
    }
    chosen() = table;
    return;
  }
  throw std::invalid_argument("detops.set_cpu_isa: expected auto, baseline, avx2 or avx512, got " +
                              wanted);
}

}  // namespace detops::cpu
