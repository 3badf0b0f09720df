// SPDX-License-Identifier: MIT
// Runs the checks for every instruction set.
#include <cstdio>
#include <random>
#include <stdexcept>

#include "../../csrc/cpu/simd/isa.h"
#include "check.h"

namespace detops::cross {
namespace {

int failures = 0;

}  // namespace

void check(bool passed, const char* name) {
  if (passed) return;
  std::printf("FAILED: %s\n", name);
  ++failures;
}

namespace {

void check_all() {
  std::mt19937 random(0);
  check_attention(random);
  check_boxes(random);
  check_convolutions(random);
  check_deform_conv2d(random);
  check_masks(random);
  check_pooling();
}

}  // namespace
}  // namespace detops::cross

int main() {
  using namespace detops;
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    try {
      cpu::set_cpu_isa(isa);
    } catch (const std::invalid_argument&) {
      continue;  // not supported by this processor
    }
    cross::check_all();
    std::printf("%s kernels: %d failures\n", cpu::cpu_isa(), cross::failures);
  }
  return cross::failures != 0;
}
