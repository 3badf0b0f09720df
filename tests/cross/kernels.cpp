// SPDX-License-Identifier: MIT
// The transposes of RoIAlign; runs the other checks.
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../csrc/cpu/roi/roi_align_kernels.h"
#include "../../csrc/cpu/simd/isa.h"
#include "check.h"

namespace detops::cross {
namespace {

using namespace detops::cpu;

int failures = 0;

}  // namespace

void check(bool good, const char* what) {
  if (good) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

namespace {

template <typename T>
void check_transpose(int64_t channels, int64_t count) {
  using A = accumulate_t<T>;
  const auto& kernel = roi_align_kernels<T>();
  std::vector<T> planes(channels * count), back(channels * count);
  for (size_t i = 0; i < planes.size(); ++i) math::from_float(A(i % 97), planes[i]);
  std::vector<A> lanes(count * kRoIChannels, A(-1));
  kernel.planes_to_lanes(planes.data(), count, channels, count, lanes.data());
  kernel.lanes_to_planes(lanes.data(), count, channels, count, back.data());
  bool same = true;
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < count; ++i) {
      const A value = math::to_float(planes[c * count + i]);
      same &= lanes[i * kRoIChannels + c] == value;
      same &= math::to_float(back[c * count + i]) == value;
    }
  }
  check(same, "transpose");
}

void check_all() {
  std::mt19937 random(0);
  for (const int64_t channels : {1, 3, 17, 32}) {
    for (const int64_t count : {1, 5, 16, 49}) {
      check_transpose<float>(channels, count);
      check_transpose<double>(channels, count);
      check_transpose<Half>(channels, count);
      check_transpose<BFloat16>(channels, count);
    }
  }
  check_attention(random);
  check_boxes(random);
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
      continue;  // not on this processor
    }
    cross::check_all();
    std::printf("%s kernels: %d failures\n", cpu::cpu_isa(), cross::failures);
  }
  return cross::failures != 0;
}
