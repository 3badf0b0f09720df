// SPDX-License-Identifier: MIT
// Boxes and run lengths of masks, and pasted masks.
#include "../../csrc/math/masks.h"
#include "../../csrc/ops.h"
#include "check.h"

namespace detops::cross {
namespace {

using namespace detops::cpu;

template <typename T>
void check_masks_to_boxes(std::mt19937& random, int64_t width) {
  constexpr int64_t kMasks = 5, kHeight = 5;
  std::vector<T> masks(kMasks * kHeight * width);
  std::vector<float> expected(4);  // the box of the first mask, which is empty
  for (int64_t i = 1; i < kMasks; ++i) {
    float box[4] = {float(width), float(kHeight), -1, -1};
    for (int k = 0; k < 2; ++k) {
      const int64_t pixel = random() % (kHeight * width), x = pixel % width, y = pixel / width;
      masks[i * kHeight * width + pixel] = T(4);
      box[0] = std::min(box[0], float(x)), box[1] = std::min(box[1], float(y));
      box[2] = std::max(box[2], float(x)), box[3] = std::max(box[3], float(y));
    }
    expected.insert(expected.end(), box, box + 4);
  }
  Tensor boxes = empty({kMasks, 4}, {kFloat, kCPU, -1});
  masks_to_boxes(tensor(masks, {kMasks, kHeight, width}), boxes);
  check(to_vector<float>(boxes) == expected, "boxes of masks");
}

// "0", "4" and so on are runs of 0, 4: see RunLengths. The masks have at most two runs, all shorter
// than 16, so that each is one character.
void check_run_lengths() {
  constexpr int64_t kHeight = 3, kWidth = 5;
  for (int64_t begin = 0; begin < kHeight * kWidth; ++begin) {
    std::vector<uint8_t> rows(kHeight * kWidth);
    for (int64_t i = begin; i < kHeight * kWidth; ++i) rows[i % kHeight * kWidth + i / kHeight] = 1;
    const auto [text, ends] = cpu::masks_to_rle(tensor(rows, {1, kHeight, kWidth}));
    const std::vector<uint8_t> expected{static_cast<uint8_t>('0' + begin),
                                        static_cast<uint8_t>('0' + kHeight * kWidth - begin)};
    check(to_vector<uint8_t>(text) == expected, "run lengths");
  }
}

void check_paste(std::mt19937& random) {
  constexpr int64_t kCells = 7, kHeight = 40, kWidth = 83;
  const auto mask = uniform<float>(random, kCells * kCells, 0, 1);
  const std::vector<float> box{5.5f, 3.25f, 71.f, 30.75f};
  std::vector<uint8_t> binary, soft;
  const auto cell = [&](int64_t y, int64_t x) {
    const bool inside = y > 0 && x > 0 && y <= kCells && x <= kCells;
    return inside ? mask[(y - 1) * kCells + x - 1] : 0.f;
  };
  for (int64_t y = 0; y < kHeight; ++y) {
    for (int64_t x = 0; x < kWidth; ++x) {
      math::Taps<float> row_taps{}, column_taps{};
      float value = 0;
      if (math::mask_taps(box[1], box[3], kCells, y, row_taps) &&
          math::mask_taps(box[0], box[2], kCells, x, column_taps)) {
        const auto row = [&](int64_t r) {
          return cell(r, column_taps.low) * column_taps.weight_low +
                 cell(r, column_taps.high) * column_taps.weight_high;
        };
        value = row(row_taps.low) * row_taps.weight_low + row(row_taps.high) * row_taps.weight_high;
      }
      binary.push_back(value >= 0.5f);
      soft.push_back(math::soft_mask_value(value));
    }
  }
  const Tensor masks = tensor(mask, {1, 1, kCells, kCells}), boxes = tensor(box, {1, 4});
  Tensor pasted = empty({1, kHeight, kWidth}, {kByte, kCPU, -1});
  paste_masks_in_image(masks, boxes, kHeight, kWidth, 0.5, pasted);
  check(to_vector<uint8_t>(pasted) == binary, "pasted masks");
  paste_masks_in_image(masks, boxes, kHeight, kWidth, -1, pasted);
  check(to_vector<uint8_t>(pasted) == soft, "pasted soft masks");
}

}  // namespace

void check_masks(std::mt19937& random) {
  for (const int64_t width : {1, 7, 40, 203}) {
    check_masks_to_boxes<uint8_t>(random, width);
    check_masks_to_boxes<torch::headeronly::Half>(random, width);
    check_masks_to_boxes<float>(random, width);
    check_masks_to_boxes<double>(random, width);
  }
  check_run_lengths();
  check_paste(random);
}

}  // namespace detops::cross
