// SPDX-License-Identifier: MIT
// The CPU kernels without PyTorch, so that they can be run on another architecture by an emulator:
// see `make cross-check`. Compares them with plain loops.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../csrc/cpu/kernels/box_iou.h"
#include "../../csrc/cpu/kernels/box_iou_loss.h"
#include "../../csrc/cpu/kernels/isa.h"
#include "../../csrc/cpu/kernels/lltm.h"
#include "../../csrc/cpu/kernels/masks_to_boxes.h"
#include "../../csrc/cpu/kernels/mlp.h"
#include "../../csrc/cpu/kernels/nms.h"
#include "../../csrc/cpu/kernels/paste_masks_in_image.h"
#include "../../csrc/cpu/kernels/roi_align.h"
#include "../../csrc/cpu/nms_grid.h"

// The one function of PyTorch that the kernels call.
namespace at {
std::string get_cpu_capability() { return "DEFAULT"; }
}  // namespace at

namespace {

using namespace detops;
using namespace detops::cpu;

int failures = 0;

void check(bool good, const char* what) {
  if (good) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

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
  std::uniform_real_distribution<float> place(0, 50), side(4, 40);
  constexpr int64_t kCount = 37;
  std::vector<float> columns(6 * (kCount + kOverlapPadding), 0.f), row(kCount);
  std::vector<math::OverlapBox<float>> boxes;
  const int64_t stride = kCount + kOverlapPadding;
  for (int64_t i = 0; i < kCount; ++i) {
    const float x = place(random), y = place(random);
    boxes.push_back(math::overlap_box<math::Overlap::kCIoU>(
        math::Box<float>{x, y, x + side(random), y + side(random)}));
    const auto& b = boxes.back();
    const float values[] = {b.box.x1, b.box.y1, b.box.x2, b.box.y2, b.area, b.angle};
    for (int64_t k = 0; k < 6; ++k) columns[k * stride + i] = values[k];
  }
  const float* x1 = columns.data();
  const OverlapBoxes<float> others{
      x1, x1 + stride, x1 + 2 * stride, x1 + 3 * stride, x1 + 4 * stride, x1 + 5 * stride, kCount};
  const auto& kernel = overlap_kernels<float>();
  kernel.row[static_cast<int>(math::Overlap::kCIoU)](boxes[0], others, 1e-7f, row.data());
  bool close = true;
  for (int64_t i = 0; i < kCount; ++i) {
    const float expected =
        math::pairwise::overlap<math::Overlap::kCIoU, float>(boxes[0], boxes[i], 1e-7f);
    close &= std::fabs(row[i] - expected) <= 1e-6f;
  }
  check(close, "overlap");
  float best = -1;
  int64_t index = -1;
  kernel.best(boxes[5], others, best, index);
  check(index == 5 && best == 1, "best overlap");
}

void check_overlap_loss(std::mt19937& random) {
  constexpr auto kCIoU = math::Overlap::kCIoU;
  constexpr int64_t kCount = 75;
  std::uniform_real_distribution<float> place(0, 50), side(4, 40);
  std::vector<math::Box<float>> a(kCount), b(kCount), to_a(kCount), to_b(kCount);
  std::vector<float> grad(kCount, 1.f), loss(kCount);
  for (auto* boxes : {&a, &b}) {
    for (auto& box : *boxes) {
      const float x = place(random), y = place(random);
      box = {x, y, x + side(random), y + side(random)};
    }
  }
  const auto& kernels = box_loss_kernels<float>();
  const int kind = static_cast<int>(kCIoU);
  kernels.forward[kind](&a[0].x1, &b[0].x1, kCount, 1e-7f, loss.data());
  kernels.backward[kind](grad.data(), &a[0].x1, &b[0].x1, kCount, 1e-7f, &to_a[0].x1, &to_b[0].x1);
  bool close = true;
  for (int64_t i = 0; i < kCount; ++i) {
    const auto first = math::overlap_box<kCIoU>(a[i]), second = math::overlap_box<kCIoU>(b[i]);
    const float value = math::pairwise::overlap_loss<kCIoU, float>(first, second, 1e-7f);
    math::Box<float> da, db;
    math::pairwise::overlap_loss_gradient<kCIoU, float>(first, second, 1e-7f, 1.f, da, db);
    close &= std::fabs(loss[i] - value) <= 1e-6f;
    close &= std::fabs(to_a[i].x1 - da.x1) <= 1e-6f && std::fabs(to_b[i].y2 - db.y2) <= 1e-6f;
  }
  check(close, "overlap loss");
}

void check_mask_extent(std::mt19937& random, int64_t width, int64_t element_size) {
  constexpr int64_t kHeight = 5;
  std::vector<uint8_t> mask(kHeight * width * element_size);
  const MaskParams params{kHeight, width, element_size, ~uint64_t(0)};
  MaskExtent found{};
  check(!mask_kernels().extent(params, mask.data(), found), "empty mask");
  MaskExtent expected{width, kHeight, -1, -1};
  for (int i = 0; i < 2; ++i) {
    const int64_t pixel = random() % (kHeight * width), x = pixel % width, y = pixel / width;
    mask[pixel * element_size + random() % element_size] = 4;
    expected = {std::min(expected.x1, x), std::min(expected.y1, y), std::max(expected.x2, x),
                std::max(expected.y2, y)};
  }
  check(mask_kernels().extent(params, mask.data(), found) && found.x1 == expected.x1 &&
            found.y1 == expected.y1 && found.x2 == expected.x2 && found.y2 == expected.y2,
        "mask extent");
}

void check_paste(std::mt19937& random) {
  constexpr int64_t kCount = 83;
  std::uniform_real_distribution<float> value(0, 1);
  std::vector<float> low(kCount), high(kCount);
  std::vector<uint8_t> binary(kCount), soft(kCount);
  for (float& x : low) x = value(random);
  for (float& x : high) x = value(random);
  const auto& kernels = paste_kernels<float>();
  kernels.binary(low.data(), high.data(), 0.3f, 0.7f, 0.5f, kCount, binary.data());
  kernels.soft(low.data(), high.data(), 0.3f, 0.7f, -1.f, kCount, soft.data());
  bool same = true;
  for (int64_t i = 0; i < kCount; ++i) {
    const float between = low[i] * 0.3f + high[i] * 0.7f;
    same &= binary[i] == (between >= 0.5f) && soft[i] == math::soft_mask_value(between);
  }
  check(same, "paste");
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
  check_overlap_loss(random);
  check_paste(random);
  for (const int64_t width : {1, 7, 40, 203}) {
    for (const int64_t element_size : {1, 2, 4, 8}) check_mask_extent(random, width, element_size);
  }
}

}  // namespace

int main() {
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    try {
      set_cpu_isa(isa);
    } catch (const std::invalid_argument&) {
      continue;  // not on this processor
    }
    check_all();
    std::printf("%s kernels: %d failures\n", cpu_isa(), failures);
  }
  return failures != 0;
}
