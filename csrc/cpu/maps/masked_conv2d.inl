// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../simd/product.inl"

constexpr int64_t kConvVectors = 3;
constexpr int64_t kConvOutputs = DETOPS_VECTOR_BYTES == 64 ? 8 : 4;  // their sums fit in registers

// Output pixels that are computed together.
template <typename A>
constexpr int64_t kConvTile = kConvVectors * kLanes<A>;

// Sets columns[k, j] to the input under tap k (of C x kh x kw) at output pixel pixels[j].
template <typename T, typename A = accumulate_t<T>>
void gather_columns(const ConvGeometry& g, const T* features, const int32_t* pixels, int64_t count,
                    A* columns) {
  constexpr int64_t kTile = kConvTile<A>;
  const int64_t taps = g.kernel_height * g.kernel_width, size = g.height * g.width;
  int64_t from[kTile];
  for (int64_t tap = 0; tap < taps; ++tap) {
    const int64_t dy = tap / g.kernel_width - g.padding_y, dx = tap % g.kernel_width - g.padding_x;
    bool inside = true;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t y = pixels[j] / g.output_width * g.stride_y + dy;
      const int64_t x = pixels[j] % g.output_width * g.stride_x + dx;
      const bool on_map = y >= 0 && y < g.height && x >= 0 && x < g.width;
      from[j] = on_map ? y * g.width + x : -1;
      inside = inside && on_map;
    }
    const bool contiguous = inside && count == kTile && from[kTile - 1] - from[0] == kTile - 1;
    for (int64_t c = 0; c < g.channels; ++c) {
      const T* plane = features + c * size;
      A* to = columns + (c * taps + tap) * kTile;
      if (contiguous) {
        for (int64_t j = 0; j < kTile; j += kLanes<A>) store(to + j, load(plane + from[0] + j));
      } else if (inside) {
        for (int64_t j = 0; j < count; ++j) to[j] = math::to_float(plane[from[j]]);
      } else {
        for (int64_t j = 0; j < count; ++j) {
          to[j] = from[j] < 0 ? A(0) : A(math::to_float(plane[from[j]]));
        }
      }
      for (int64_t j = count; j < kTile; ++j) to[j] = 0;
    }
  }
}

// Multiplies kOutputs rows of weights by the columns, into the pixels of kOutputs planes.
template <int64_t kOutputs, typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void multiply_columns(const ConvGeometry& g, const A* weights, const A* bias,
                                    const A* columns, const int32_t* pixels, int64_t count,
                                    T* output) {
  constexpr int64_t kWidth = kLanes<A>, kTile = kConvTile<A>;
  Vector<A> sums[kOutputs][kConvVectors];
  DETOPS_UNROLL for (int64_t o = 0; o < kOutputs; ++o) {
    DETOPS_UNROLL for (int64_t v = 0; v < kConvVectors; ++v) {
      sums[o][v] = splat(bias == nullptr ? A(0) : bias[o]);
    }
  }
  multiply<kOutputs, kConvVectors>(weights, columns, {g.taps, 1, kTile}, g.taps, kTile, sums);
  DETOPS_UNROLL for (int64_t o = 0; o < kOutputs; ++o) {
    T row[kTile];
    DETOPS_UNROLL for (int64_t v = 0; v < kConvVectors; ++v) store(row + v * kWidth, sums[o][v]);
    T* plane = output + o * g.output_height * g.output_width;
    for (int64_t j = 0; j < count; ++j) plane[pixels[j]] = row[j];
  }
}

template <typename T, typename A = accumulate_t<T>>
void convolve_pixels(const ConvGeometry& g, const T* features, const A* weights, const A* bias,
                     const int32_t* pixels, int64_t count, A* columns, T* output) {
  gather_columns(g, features, pixels, count, columns);
  const int64_t size = g.output_height * g.output_width;
  int64_t o = 0;
  const auto at = [&](const A* t, int64_t stride) { return t == nullptr ? t : t + o * stride; };
  for (; o + kConvOutputs <= g.outputs; o += kConvOutputs) {
    multiply_columns<kConvOutputs>(g, at(weights, g.taps), at(bias, 1), columns, pixels, count,
                                   output + o * size);
  }
  for (; o < g.outputs; ++o) {
    multiply_columns<1>(g, at(weights, g.taps), at(bias, 1), columns, pixels, count,
                        output + o * size);
  }
}
