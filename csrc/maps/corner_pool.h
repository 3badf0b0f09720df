// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include "../ops.h"

// "CornerNet" (Law and Deng, 2018), section 3.2 (corner pooling), in one direction: the largest so
// far. A NaN is larger than anything, and of equals the last one counts, as for torch.cummax.
namespace detops {

// A map as lines of `length` elements that are `inner` apart; `inner` lines lie side by side.
struct CornerLines {
  int64_t outer, length, inner;
  bool back;  // from the last element to the first

  // Of a contiguous or channels_last tensor.
  CornerLines(const Tensor& map, std::string_view mode) {
    const bool vertical = mode == "top" || mode == "bottom", last = is_channels_last(map);
    const int64_t n = map.size(0), c = map.size(1), h = map.size(2), w = map.size(3);
    back = mode == "top" || mode == "left";
    length = vertical ? h : w;
    inner = (last ? c : 1) * (vertical ? w : 1);
    outer = length == 0 || inner == 0 ? 0 : n * c * h * w / length / inner;
  }

  // constexpr: for devices too.
  constexpr int64_t step() const { return back ? -inner : inner; }
  constexpr int64_t first() const { return back ? (length - 1) * inner : 0; }
};

}  // namespace detops
