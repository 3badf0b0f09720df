// SPDX-License-Identifier: MIT
// Included in namespace math by ms_deform_attn.h, and once per instruction set by the CPU kernels;
// T is a number, V that number or a vector of it, I an integer or a vector of it.

// "Deformable DETR" (Zhu et al., 2020), equations 2 and 3: a query's value is a weighted sum of
// bilinear samples of several maps, each of which continues with zeros beyond its border.
namespace attention {

// A sample lies between four positions: upper left, upper right, lower left, lower right.
template <typename V>
struct Corners {
  V at[4];
};

// The upper left corner, and how far from it towards the right and the lower ones the sample is.
template <typename V>
struct Place {
  V x, y, right, lower;
};

// What a sample's gradient reaches.
template <typename V>
struct Gradient {
  V x, y, weight;
};

// (x, y) in [0, 1]: from the outer edge of the first pixel to that of the last. Where no corner
// can lie on the map, or a coordinate is NaN (hence the test for what is inside), the place is one
// with all corners off the map.
template <typename T, typename V>
DETOPS_HD Place<V> place(V x, V y, V width, V height) {
  x = x * width - T(0.5);
  y = y * height - T(0.5);
  const auto inside = (x > T(-1)) & (x < width) & (y > T(-1)) & (y < height);
  const V away = V{} - T(2);
  x = inside ? x : away;
  y = inside ? y : away;
  const V column = floor(x), row = floor(y);
  return {column, row, x - column, y - row};
}

// The number of the position (x, y), or -1 off the map.
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
DETOPS_HD Corners<V> shares(const Place<V>& p) {
  const V left = T(1) - p.right, upper = T(1) - p.lower;
  return {{upper * left, upper * p.right, p.lower * left, p.lower * p.right}};
}

// From the products of the query's gradient with the values at the corners.
template <typename T, typename V>
DETOPS_HD Gradient<V> gradient(const Place<V>& p, V weight, V width, V height,
                               const Corners<V>& product) {
  const V* at = product.at;
  const V left = T(1) - p.right, upper = T(1) - p.lower;
  return {weight * width * (upper * (at[1] - at[0]) + p.lower * (at[3] - at[2])),
          weight * height * (left * (at[2] - at[0]) + p.right * (at[3] - at[1])),
          upper * (left * at[0] + p.right * at[1]) + p.lower * (left * at[2] + p.right * at[3])};
}

}  // namespace attention
