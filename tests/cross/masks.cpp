// SPDX-License-Identifier: MIT
// Losses of matched boxes, boxes of masks and pasted masks.
#include <algorithm>
#include <cmath>
#include <vector>

#include "../../csrc/cpu/boxes/box_iou_loss_kernels.h"
#include "../../csrc/cpu/masks/masks_to_boxes_kernels.h"
#include "../../csrc/cpu/masks/paste_masks_in_image_kernels.h"
#include "check.h"

namespace detops::cross {
namespace {

using namespace detops::cpu;

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

}  // namespace

void check_masks(std::mt19937& random) {
  check_overlap_loss(random);
  check_paste(random);
  for (const int64_t width : {1, 7, 40, 203}) {
    for (const int64_t element_size : {1, 2, 4, 8}) check_mask_extent(random, width, element_size);
  }
}

}  // namespace detops::cross
