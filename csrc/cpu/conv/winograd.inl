// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. "Fast Algorithms for Convolutional Neural
// Networks" (Lavin and Gray, 2016), section 4.1: F(4x4, 3x3), at the points 0, +-3/4, +-3/2 and
// infinity. The usual 0, +-1, +-2 give twice the rounding error, and four times the largest.

template <typename V>
DETOPS_INLINE V times_add(double factor, V x, V y) {
  using T = std::remove_reference_t<decltype(x[0])>;
  return fused(splat(static_cast<T>(factor)), x, y);
}

// Six values of a line become their transform.
template <typename V>
DETOPS_INLINE void transform_line(V (&d)[6]) {
  const V even1 = times_add(-2.25, d[2], d[4]), odd1 = times_add(-2.25, d[1], d[3]);
  const V even2 = times_add(-0.5625, d[2], d[4]), odd2 = times_add(-0.5625, d[1], d[3]);
  d[0] = times_add(1.265625, d[0], times_add(-2.8125, d[2], d[4]));
  d[5] = times_add(1.265625, d[1], times_add(-2.8125, d[3], d[5]));
  d[1] = times_add(0.75, odd1, even1);
  d[2] = times_add(-0.75, odd1, even1);
  d[3] = times_add(1.5, odd2, even2);
  d[4] = times_add(-1.5, odd2, even2);
}

// The sums of six points become the four results of a line.
template <typename V>
DETOPS_INLINE void result_line(const V (&m)[6], V (&y)[4]) {
  const V even1 = m[1] + m[2], odd1 = m[1] - m[2], even2 = m[3] + m[4], odd2 = m[3] - m[4];
  y[0] = m[0] + even1 + even2;
  y[1] = times_add(0.75, odd1, 1.5 * odd2);
  y[2] = times_add(0.5625, even1, 2.25 * even2);
  y[3] = times_add(0.421875, odd1, times_add(3.375, odd2, m[5]));
}

// Three weights of a line at the six points.
template <typename V>
DETOPS_INLINE void weight_line(const V (&w)[3], V (&points)[6]) {
  using T = std::remove_reference_t<decltype(w[0][0])>;
  constexpr T kEven[2][2] = {{T(-128. / 243), T(-8. / 27)}, {T(32. / 243), T(8. / 27)}};
  const V even1 = kEven[0][0] * w[0] + kEven[0][1] * w[2], odd1 = T(-32. / 81) * w[1];
  const V even2 = kEven[1][0] * w[0] + kEven[1][1] * w[2], odd2 = T(16. / 81) * w[1];
  points[0] = T(64. / 81) * w[0];
  points[1] = even1 + odd1;
  points[2] = even1 - odd1;
  points[3] = even2 + odd2;
  points[4] = even2 - odd2;
  points[5] = w[2];
}

// Kernels of a panel, weights[9] of `size` each, to points[36] of the same.
template <typename T>
void winograd_weights(const T* weights, int64_t size, T* points) {
  for (int64_t i = 0; i < size; i += kLanes<T>) {
    Vector<T> half[6][3], line[6];
    DETOPS_UNROLL for (int64_t x = 0; x < 3; ++x) {
      const T* column = weights + x * size + i;
      const Vector<T> w[3] = {load(column), load(column + 3 * size), load(column + 6 * size)};
      weight_line(w, line);
      DETOPS_UNROLL for (int64_t y = 0; y < 6; ++y) half[y][x] = line[y];
    }
    DETOPS_UNROLL for (int64_t y = 0; y < 6; ++y) {
      weight_line(half[y], line);
      DETOPS_UNROLL for (int64_t x = 0; x < 6; ++x) store(points + (y * 6 + x) * size + i, line[x]);
    }
  }
}

// The 6x6 pixels of a tile, at pixels[36], to the 36 planes of values.
template <typename T>
DETOPS_INLINE void transform_tile(const T* const* pixels, int64_t channels, T* values,
                                  int64_t plane) {
  for (int64_t c = 0; c < channels; c += kLanes<T>) {
    Vector<T> half[6][6];
    DETOPS_UNROLL for (int64_t x = 0; x < 6; ++x) {
      Vector<T> line[6];
      DETOPS_UNROLL for (int64_t y = 0; y < 6; ++y) {
        line[y] = load_first(pixels[y * 6 + x] + c, channels - c);
      }
      transform_line(line);
      DETOPS_UNROLL for (int64_t y = 0; y < 6; ++y) half[y][x] = line[y];
    }
    DETOPS_UNROLL for (int64_t y = 0; y < 6; ++y) {
      transform_line(half[y]);
      DETOPS_UNROLL for (int64_t x = 0; x < 6; ++x) {
        store(values + (y * 6 + x) * plane + c, half[y][x]);
      }
    }
  }
}

// The results of a tile whose first pixel is `pixel`, as far as they are on the map.
template <typename T>
DETOPS_INLINE void finish_tile(const T* sums, int64_t plane, int64_t pixel, int64_t row_length,
                               int64_t rows, int64_t columns, const Finish<T>& finish) {
  for (int64_t o = 0; o < finish.outputs; o += kLanes<T>) {
    Vector<T> half[4][6];
    DETOPS_UNROLL for (int64_t x = 0; x < 6; ++x) {
      Vector<T> line[6], results[4];
      DETOPS_UNROLL for (int64_t y = 0; y < 6; ++y) line[y] = load(sums + (y * 6 + x) * plane + o);
      result_line(line, results);
      DETOPS_UNROLL for (int64_t y = 0; y < 4; ++y) half[y][x] = results[y];
    }
    for (int64_t y = 0; y < rows; ++y) {
      Vector<T> results[4];
      result_line(half[y], results);
      for (int64_t x = 0; x < columns; ++x) {
        finish_vector(finish, pixel + y * row_length + x, o, results[x]);
      }
    }
  }
}

// Where the pixels of a tile are, row by row from (top, left) on; zeros beyond the map.
template <int64_t kSide, typename T>
DETOPS_INLINE void find_pixels(const T* image, int64_t height, int64_t width, int64_t channels,
                               int64_t top, int64_t left, const T* zeros, const T** pixels) {
  for (int64_t y = 0; y < kSide; ++y) {
    for (int64_t x = 0; x < kSide; ++x) {
      const bool inside = top + y >= 0 && top + y < height && left + x >= 0 && left + x < width;
      pixels[y * kSide + x] = inside ? image + ((top + y) * width + left + x) * channels : zeros;
    }
  }
}

// The input of tiles from `first` on, of all images, row by row, at the 6x6 points: planes of rows,
// a row per tile.
template <typename T>
void winograd_inputs(const ConvSizes& s, const T* input, int64_t first, int64_t count,
                     const T* zeros, T* values, int64_t plane) {
  const int64_t down = (s.output_height + 3) / 4, across = (s.output_width + 3) / 4;
  const int64_t stride = winograd_stride(s.channels);
  for (int64_t t = 0; t < count; ++t) {
    const int64_t tile = first + t, image = tile / (down * across);
    const T* pixels[36];
    find_pixels<6>(input + image * s.height * s.width * s.channels, s.height, s.width, s.channels,
                   tile / across % down * 4 - s.padding_y, tile % across * 4 - s.padding_x, zeros,
                   pixels);
    transform_tile(pixels, s.channels, values + t * stride, plane);
  }
}

// A convolution's tiles.
template <typename T>
void winograd_tiles(const ConvSizes& s, const ConvData<T>& data, int64_t first, int64_t count,
                    const T* zeros, T* values, T* sums) {
  const int64_t down = (s.output_height + 3) / 4, across = (s.output_width + 3) / 4;
  const int64_t value_stride = winograd_stride(s.channels), value_plane = count * value_stride;
  const int64_t panels = panels_of(s.outputs);
  const int64_t sum_stride = winograd_stride(panels * kPanel), sum_plane = count * sum_stride;
  const int64_t origin = 0;
  winograd_inputs(s, data.input, first, count, zeros, values, value_plane);
  for (int64_t i = 0; i < kWinogradPlanes; ++i) {
    for (int64_t p = 0; p < panels; ++p) {
      const T* panel = data.weights + (i * panels + p) * s.channels * kPanel;
      T* to = sums + i * sum_plane + p * kPanel;
      multiply_rows(count, values + i * value_plane, value_stride, {&origin, 1, s.channels}, panel,
                    Finish<T>{nullptr, nullptr, to, sum_stride, kPanel, false});
    }
  }
  const Finish<T> finish{data.bias, data.add, data.output, s.outputs, s.outputs, data.relu};
  for (int64_t t = 0; t < count; ++t) {
    const int64_t tile = first + t, image = tile / (down * across);
    const int64_t y = tile / across % down * 4, x = tile % across * 4;
    const int64_t pixel = (image * s.output_height + y) * s.output_width + x;
    finish_tile(sums + t * sum_stride, sum_plane, pixel, s.output_width,
                y + 4 <= s.output_height ? 4 : s.output_height - y,
                x + 4 <= s.output_width ? 4 : s.output_width - x, finish);
  }
}
