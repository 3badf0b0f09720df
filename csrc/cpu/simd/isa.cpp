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
bool runs_here(Isa isa) {
#ifdef DETOPS_X86_TARGETS
  if (isa == Isa::kAvx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
  if (isa == Isa::kAvx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return isa == Isa::kBaseline;
}

Isa best() {
  const char* asked = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string most = asked == nullptr ? "" : asked;
  if (most == "default") return Isa::kBaseline;
  if (most != "avx2" && runs_here(Isa::kAvx512)) return Isa::kAvx512;
  return runs_here(Isa::kAvx2) ? Isa::kAvx2 : Isa::kBaseline;
}

std::atomic<Isa>& chosen() {
  static std::atomic<Isa> isa{best()};
  return isa;
}

}  // namespace

Isa isa() { return chosen().load(std::memory_order_relaxed); }

const char* cpu_isa() { return kNames[static_cast<int>(isa())]; }

void set_cpu_isa(const char* name) {
  const std::string wanted = name;
  if (wanted == "auto") {
    chosen() = best();
    return;
  }
  const auto* known = std::find(std::begin(kNames), std::end(kNames), wanted);
  if (known == std::end(kNames)) {
    throw std::invalid_argument(
        "detops.set_cpu_isa: expected auto, baseline, avx2 or avx512, got " + wanted);
  }
  const auto isa = static_cast<Isa>(known - kNames);
  if (!runs_here(isa)) {
    throw std::invalid_argument("detops.set_cpu_isa: this processor cannot run " + wanted);
  }
  chosen() = isa;
}

}  // namespace detops::cpu
