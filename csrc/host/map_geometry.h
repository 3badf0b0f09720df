// SPDX-License-Identifier: MIT
#pragma once

#include "../ops.h"
#include "conv_geometry.h"

// Sizes that the host functions of both devices derive from checked arguments. Device code calls
// the constexpr members.
namespace detops {

// "Oriented Response Networks" (Zhou et al., 2017), section 3.1 (active rotating filters): each
// rotation permutes the weights of a filter of several orientations.
struct RotatedFilters {
  int64_t outputs, inputs;     // channels before rotation
  int64_t entries, rotations;  // weights of a filter: orientations * rows * columns

  // `indices` [orientations, H, W, rotations] contains the new position of each entry, from 1.
  RotatedFilters(int64_t outputs, int64_t inputs, const Tensor& indices)
      : outputs(outputs),
        inputs(inputs),
        entries(indices.size(0) * indices.size(1) * indices.size(2)),
        rotations(indices.size(3)) {}

  constexpr int64_t filters() const { return outputs * inputs; }

  // Returns the offset of rotated filter i of [outputs, inputs] in
  // [outputs, rotations, inputs, entries].
  constexpr int64_t rotated_offset(int64_t i, int64_t rotation) const {
    return ((i / inputs * rotations + rotation) * inputs + i % inputs) * entries;
  }
};

// A reassembly of features. The first four members are the sizes of the features.
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

// "CornerNet" (Law and Deng, 2018), section 3.2 (corner pooling), in one direction: a
// running maximum. NaN is the largest value, and the last of equal elements counts, as in
// torch.cummax. Lines have `length` elements with stride `inner`; `inner` lines are adjacent.
struct CornerLines {
  int64_t outer, length, inner;
  bool reverse;  // from the last element to the first

  // For a contiguous or channels_last tensor.
  CornerLines(const Tensor& map, std::string_view mode) {
    const bool vertical = mode == "top" || mode == "bottom", channels_last = is_channels_last(map);
    const int64_t n = map.size(0), c = map.size(1), h = map.size(2), w = map.size(3);
    reverse = mode == "top" || mode == "left";
    length = vertical ? h : w;
    inner = (channels_last ? c : 1) * (vertical ? w : 1);
    outer = length == 0 || inner == 0 ? 0 : n * c * h * w / length / inner;
  }

  constexpr int64_t step() const { return reverse ? -inner : inner; }
  constexpr int64_t first() const { return reverse ? (length - 1) * inner : 0; }
};

// Returns mask > 0 as bool, for any dtype that the contract accepts.
inline Tensor positive(const Tensor& mask) {
  const ScalarType type = mask.scalar_type();
  // PyTorch does not compare wider unsigned integers. For those, > 0 is the same as != 0.
  if (is_discrete(type) && !is_integer(type)) return mask.to(kBool).contiguous();
  return call::op("aten::gt", "Tensor", mask, zeros({}, mask.options())).contiguous();
}

}  // namespace detops
