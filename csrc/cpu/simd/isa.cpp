// SPDX-License-Identifier: MIT
#include "isa.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>

namespace detops::cpu {
namespace {

constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};

// Returns whether this processor can run code compiled for an instruction set.
bool is_supported(Isa isa) {
#ifdef DETOPS_X86_TARGETS
  if (isa == Isa::kAvx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
  if (isa == Isa::kAvx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return isa == Isa::kBaseline;
}

Isa best_isa() {
  const char* capability = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string limit = capability == nullptr ? "" : capability;
  if (limit == "default") return Isa::kBaseline;
  if (limit != "avx2" && is_supported(Isa::kAvx512)) return Isa::kAvx512;
  return is_supported(Isa::kAvx2) ? Isa::kAvx2 : Isa::kBaseline;
}

std::atomic<Isa>& current_isa() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

}  // namespace

Isa isa() { return current_isa().load(std::memory_order_relaxed); }

const char* cpu_isa() { return kNames[static_cast<int>(isa())]; }

void set_cpu_isa(const char* name) {
  const std::string requested = name;
  if (requested == "auto") {
    current_isa() = best_isa();
    return;
  }
  const auto* found = std::find(std::begin(kNames), std::end(kNames), requested);
  if (found == std::end(kNames)) {
    throw std::invalid_argument(
        "detops.set_cpu_isa: expected auto, baseline, avx2 or avx512, got " + requested);
  }
  const auto isa = static_cast<Isa>(found - kNames);
  if (!is_supported(isa)) {
    throw std::invalid_argument("detops.set_cpu_isa: this processor cannot run " + requested);
  }
  current_isa() = isa;
}

}  // namespace detops::cpu
