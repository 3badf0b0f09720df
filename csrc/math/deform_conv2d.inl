// SPDX-License-Identifier: MIT
// Included in namespace math by deform_conv2d.h, and once per instruction set by the CPU kernels; T
// is a number, V that number or a vector of it.

namespace deform {

// Where a bilinear sample lies: between the pixels (y, x) and (y + 1, x + 1), which are whole
// numbers, and how far from the first to the second. Pixels outside of the image are zeros.
template <typename V>
struct Sample {
  V y, x, part_y, part_x;
};

// A sample that is NaN, infinite or further than a pixel from the image lies in rows -2 and -1, of
// which no pixel is in the image. At -1 itself it is zero, but its derivative need not be: for
// torchvision it is that of the side within the image, for detectron2, mmcv and maskrcnn-benchmark
// zero. `least`, the first place along an axis that counts, is -1 or the next number; see
// least_place.
template <typename T, typename V>
DETOPS_HD Sample<V> sample(V y, V x, T least, T height, T width) {
  const auto inside = (y >= least) & (y < height) & (x >= least) & (x < width);
  y = inside ? y : V{} - T(2);
  x = inside ? x : V{};
  const V low_y = floor(y), low_x = floor(x);
  return {low_y, low_x, y - low_y, x - low_x};
}

// Corners are in the order (y, x), (y, x + 1), (y + 1, x), (y + 1, x + 1).
template <typename V>
struct Corners {
  V at[4];
};

template <typename T, typename V>
DETOPS_HD Corners<V> weights(const Sample<V>& s, V mask) {
  const V low = mask * (T(1) - s.part_y), high = mask * s.part_y;
  return {{low * (T(1) - s.part_x), low * s.part_x, high * (T(1) - s.part_x), high * s.part_x}};
}

// What a sample's value times its mask sends back to its place and mask.
template <typename V>
struct Gradient {
  V y, x, mask;
};

// `dot`: the products of the gradient with the corners' values, summed over the channels.
template <typename T, typename V>
DETOPS_HD Gradient<V> gradient(const Sample<V>& s, V mask, const Corners<V>& dot) {
  const V top = dot.at[1] - dot.at[0], bottom = dot.at[3] - dot.at[2];
  const V left = dot.at[2] - dot.at[0], right = dot.at[3] - dot.at[1];
  const V upper = dot.at[0] + s.part_x * top, lower = dot.at[2] + s.part_x * bottom;
  return {mask * (left + s.part_x * (right - left)), mask * (top + s.part_y * (bottom - top)),
          upper + s.part_y * (lower - upper)};
}

}  // namespace deform
