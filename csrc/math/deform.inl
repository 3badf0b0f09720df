// SPDX-License-Identifier: MIT
// See host_device.h.

// "Deformable DETR" (Zhu et al., 2020), equations 2 and 3: a query's value is a weighted sum of
// bilinear samples of several feature maps, each padded with zeros.
namespace attention {

// The four positions around a sample: upper left, upper right, lower left, lower right.
template <typename V>
struct Corners {
  V at[4];
};

// The upper left corner of a sample, and the distances of the sample from it, right and down.
template <typename V>
struct SampleLocation {
  V x, y, right, lower;
};

// Gradients of a sample's location and attention weight.
template <typename V>
struct Gradient {
  V x, y, weight;
};

// Places a sample at (x, y), where 0 is the outer edge of the first pixel and 1 that of the last.
// If no corner can lie on the feature map, or a coordinate is NaN (hence the test for what is
// inside), the result has all corners off the feature map.
template <typename T, typename V>
DETOPS_HD SampleLocation<V> locate(V x, V y, V width, V height) {
  x = x * width - T(0.5);
  y = y * height - T(0.5);
  const auto inside = (x > T(-1)) & (x < width) & (y > T(-1)) & (y < height);
  const V outside = V{} - T(2);
  x = inside ? x : outside;
  y = inside ? y : outside;
  const V column = floor(x), row = floor(y);
  return {column, row, x - column, y - row};
}

// Returns the index of the position (x, y), or -1 off the feature map.
template <typename I>
DETOPS_HD I position(I x, I y, I width, I height, I start) {
  const auto inside = (x >= 0) & (x < width) & (y >= 0) & (y < height);
  return inside ? start + y * width + x : I{} - 1;
}

template <typename I>
DETOPS_HD Corners<I> positions(I x, I y, I width, I height, I start) {
  return {{position(x, y, width, height, start), position(x + 1, y, width, height, start),
           position(x, y + 1, width, height, start), position(x + 1, y + 1, width, height, start)}};
}

template <typename T, typename V>
DETOPS_HD Corners<V> corner_weights(const SampleLocation<V>& p) {
  const V left = T(1) - p.right, upper = T(1) - p.lower;
  return {{upper * left, upper * p.right, p.lower * left, p.lower * p.right}};
}

// `product`: the dot products of the query's gradient with the values at the corners.
template <typename T, typename V>
DETOPS_HD Gradient<V> gradient(const SampleLocation<V>& p, V weight, V width, V height,
                               const Corners<V>& product) {
  const V* at = product.at;
  const V left = T(1) - p.right, upper = T(1) - p.lower;
  return {weight * width * (upper * (at[1] - at[0]) + p.lower * (at[3] - at[2])),
          weight * height * (left * (at[2] - at[0]) + p.right * (at[3] - at[1])),
          upper * (left * at[0] + p.right * at[1]) + p.lower * (left * at[2] + p.right * at[3])};
}

}  // namespace attention

namespace deform {

// A bilinear sample between the pixels (y, x) and (y + 1, x + 1), where y and x are whole numbers.
// frac_y and frac_x are the fractions of the way to the second. Pixels outside the image are zeros.
template <typename V>
struct Sample {
  V y, x, frac_y, frac_x;
};

// Places a sample. One that is NaN, infinite or more than a pixel outside the image is moved
// between rows -2 and -1, which have no pixel in the image. At exactly -1 the value is zero, but
// the derivative depends on the library: torchvision takes the one-sided derivative from within the
// image; detectron2, mmcv and maskrcnn-benchmark take zero. `least`, the least coordinate that
// contributes, is therefore -1 or the next larger number; see min_coordinate.
template <typename T, typename V>
DETOPS_HD Sample<V> sample(V y, V x, T least, T height, T width) {
  const auto inside = (y >= least) & (y < height) & (x >= least) & (x < width);
  y = inside ? y : V{} - T(2);
  x = inside ? x : V{};
  const V low_y = floor(y), low_x = floor(x);
  return {low_y, low_x, y - low_y, x - low_x};
}

// The pixels (y, x), (y, x + 1), (y + 1, x), (y + 1, x + 1), in this order.
using attention::Corners;

template <typename T, typename V>
DETOPS_HD Corners<V> weights(const Sample<V>& s, V mask) {
  const V low = mask * (T(1) - s.frac_y), high = mask * s.frac_y;
  return {{low * (T(1) - s.frac_x), low * s.frac_x, high * (T(1) - s.frac_x), high * s.frac_x}};
}

// Gradients of a sample's position and mask, for the value times the mask.
template <typename V>
struct Gradient {
  V y, x, mask;
};

// `dot`: the dot products, over channels, of the output gradient with the values at the corners.
template <typename T, typename V>
DETOPS_HD Gradient<V> gradient(const Sample<V>& s, V mask, const Corners<V>& dot) {
  const V top = dot.at[1] - dot.at[0], bottom = dot.at[3] - dot.at[2];
  const V left = dot.at[2] - dot.at[0], right = dot.at[3] - dot.at[1];
  const V upper = dot.at[0] + s.frac_x * top, lower = dot.at[2] + s.frac_x * bottom;
  return {mask * (left + s.frac_x * (right - left)), mask * (top + s.frac_y * (bottom - top)),
          upper + s.frac_y * (lower - upper)};
}

}  // namespace deform
