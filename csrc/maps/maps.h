// SPDX-License-Identifier: MIT
#pragma once

#include "../deform/geometry.h"
#include "../ops.h"

// What the host functions of both devices make of their arguments, which have been checked. Members
// that are constexpr are for devices, too.
namespace detops {

// "Oriented Response Networks" (Zhou et al., 2017), section 3.1 (active rotating filters): the
// weights of a filter of several orientations, each in another place for each rotation.
struct TurnedFilters {
  int64_t outputs, inputs;     // planes before they are turned
  int64_t entries, rotations;  // weights of a filter: of all orientations, rows and columns

  // `indices` [orientations, H, W, rotations] tells where an entry goes, counted from 1.
  TurnedFilters(int64_t outputs, int64_t inputs, const Tensor& indices)
      : outputs(outputs),
        inputs(inputs),
        entries(indices.size(0) * indices.size(1) * indices.size(2)),
        rotations(indices.size(3)) {}

  constexpr int64_t filters() const { return outputs * inputs; }

  // Where filter i of [outputs, inputs], turned, begins in [outputs, rotations, inputs, entries].
  constexpr int64_t turned(int64_t i, int64_t rotation) const {
    return ((i / inputs * rotations + rotation) * inputs + i % inputs) * entries;
  }
};

// A reassembly of features, whose sizes are the first four.
struct Reassembly : MapSizes {
  int64_t kernel, groups, scale;

  Reassembly(const Tensor& features, int64_t kernel_size, int64_t group_size, int64_t scale_factor)
      : MapSizes(features), kernel(kernel_size), groups(group_size), scale(scale_factor) {}

  constexpr int64_t taps() const { return kernel * kernel; }
  constexpr int64_t radius() const { return kernel / 2; }
  constexpr int64_t group_channels() const { return channels / groups; }
  constexpr int64_t size() const { return height * width; }
  constexpr int64_t output_width() const { return scale * width; }
  constexpr int64_t output_size() const { return scale * scale * size(); }
};

// "CornerNet" (Law and Deng, 2018), section 3.2 (corner pooling), in one direction: the largest so
// far. A NaN is larger than anything, and of equals the last one counts, as for torch.cummax.
// A map is lines of `length` elements that are `inner` apart; `inner` lines lie side by side.
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

  constexpr int64_t step() const { return back ? -inner : inner; }
  constexpr int64_t first() const { return back ? (length - 1) * inner : 0; }
};

// mask > 0 as bool: of any dtype that the contract takes.
inline Tensor positive(const Tensor& mask) {
  const ScalarType type = mask.scalar_type();
  // PyTorch compares no wider unsigned integers; of them, all but 0 are above it.
  if (is_discrete(type) && !is_integer(type)) return mask.to(kBool).contiguous();
  return call::op("aten::gt", "Tensor", mask, zeros({}, mask.options())).contiguous();
}

}  // namespace detops
