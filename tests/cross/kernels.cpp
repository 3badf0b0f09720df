// SPDX-License-Identifier: MIT
// NMS, overlaps and the transposes of RoIAlign; runs the other checks.
#include <cmath>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../csrc/cpu/nms/nms_grid.h"
#include "../../csrc/cpu/nms/nms_kernels.h"
#include "../../csrc/cpu/roi/roi_align_kernels.h"
#include "../../csrc/cpu/simd/isa.h"
#include "../../csrc/ops.h"
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
void check_nms(std::mt19937& random, int64_t n, double threshold) {
  std::uniform_real_distribution<T> place(0, 500), side(T(4), T(40));
  std::vector<T> x1(n), y1(n), x2(n), y2(n);
  for (int64_t i = 0; i < n; ++i) {
    x1[i] = place(random), y1[i] = place(random);
    x2[i] = x1[i] + side(random), y2[i] = y1[i] + side(random);
  }
  std::vector<uint8_t> keep(n), expected(n);
  for (int64_t i = 0; i < n; ++i) {
    const math::Box<T> box{x1[i], y1[i], x2[i], y2[i]};
    expected[i] = 1;
    for (int64_t j = 0; j < i && expected[i]; ++j) {
      const math::Box<T> kept{x1[j], y1[j], x2[j], y2[j]};
      expected[i] = !(expected[j] &&
                      math::suppresses(kept, math::area(kept), box, math::area(box), threshold));
    }
  }
  const int64_t stride = n + kNmsPadding;
  std::vector<T> list(5 * stride);
  const NmsBoxes<T> kept{&list[0], &list[stride], &list[2 * stride], &list[3 * stride],
                         &list[4 * stride]};
  const NmsSegment<T> s{x1.data(), y1.data(), x2.data(), y2.data(), n, threshold, keep.data()};
  const auto& kernel = nms_kernels<T>();
  const int64_t settled = kernel.flat(s, kept);
  NmsGridStorage<T> storage;
  if (settled < n) kernel.grid(s, storage.build(s, settled), settled);
  check(keep == expected, "nms");
}

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

void check_overlap(std::mt19937& random) {
  constexpr auto kCIoU = math::Overlap::kCIoU;
  std::uniform_real_distribution<float> place(0, 50), side(4, 40);
  constexpr int64_t kCount = 37;
  std::vector<float> values;
  std::vector<math::OverlapBox<float>> prepared;
  for (int64_t i = 0; i < kCount; ++i) {
    const float x = place(random), y = place(random);
    const math::Box<float> box{x, y, x + side(random), y + side(random)};
    values.insert(values.end(), {box.x1, box.y1, box.x2, box.y2});
    prepared.push_back(math::overlap_box<kCIoU>(box));
  }
  const Tensor boxes = tensor(values, {kCount, 4});
  Tensor overlaps = empty({kCount, kCount}, boxes.options());
  box_iou_forward(boxes, boxes, "ciou", 1e-7, overlaps);
  bool close = true;
  const float* overlap = overlaps.const_data_ptr<float>();
  for (const auto& a : prepared) {
    for (const auto& b : prepared) {
      const float expected = math::pairwise::overlap<kCIoU, float>(a, b, 1e-7f);
      close &= std::fabs(*overlap++ - expected) <= 1e-6f;
    }
  }
  check(close, "overlap");
  Tensor best = empty({kCount}, boxes.options());
  Tensor index = empty({kCount}, boxes.options().dtype(kLong));
  match_boxes(boxes, boxes, best, index);
  bool itself = true;
  for (int64_t i = 0; i < kCount; ++i) {
    itself &= index.const_data_ptr<int64_t>()[i] == i && best.const_data_ptr<float>()[i] == 1;
  }
  check(itself, "best overlap");
}

void check_all() {
  std::mt19937 random(0);
  for (const double threshold : {0.0, 0.1, 0.3, 0.5, 0.7, 0.95}) {
    for (const int64_t n : {1, 50, 700, 2500}) {
      check_nms<float>(random, n, threshold);
      check_nms<double>(random, n, threshold);
    }
  }
  for (const int64_t channels : {1, 3, 17, 32}) {
    for (const int64_t count : {1, 5, 16, 49}) {
      check_transpose<float>(channels, count);
      check_transpose<double>(channels, count);
      check_transpose<Half>(channels, count);
      check_transpose<BFloat16>(channels, count);
    }
  }
  check_overlap(random);
  check_attention(random);
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
