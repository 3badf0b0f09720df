// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. "Fast Algorithms for Convolutional Neural
// Networks" (Lavin and Gray, 2016), section 4.1: F(4x4, 3x3), at the points 0, +-3/4, infinity and
// +-3/2. The usual 0, +-1, +-2 double the rounding error and quadruple its maximum. The first four
// points are those of F(2, 3). Its input transforms are scaled to use the same weights.

template <typename V>
DETOPS_INLINE V multiply_add(double factor, V x, V y) {
  using T = std::remove_reference_t<decltype(x[0])>;
  return fused(splat(static_cast<T>(factor)), x, y);
}

// Transforms six values of a line to six points.
template <typename V>
DETOPS_INLINE void to_points(const V (&d)[6], V (&m)[6]) {
  const V even1 = multiply_add(-2.25, d[2], d[4]), odd1 = multiply_add(-2.25, d[1], d[3]);
  const V even2 = multiply_add(-0.5625, d[2], d[4]), odd2 = multiply_add(-0.5625, d[1], d[3]);
  m[0] = multiply_add(1.265625, d[0], multiply_add(-2.8125, d[2], d[4]));
  m[1] = multiply_add(0.75, odd1, even1);
  m[2] = multiply_add(-0.75, odd1, even1);
  m[3] = multiply_add(1.265625, d[1], multiply_add(-2.8125, d[3], d[5]));
  m[4] = multiply_add(1.5, odd2, even2);
  m[5] = multiply_add(-1.5, odd2, even2);
}

// Transforms four values of a line to four points.
template <typename V>
DETOPS_INLINE void to_points(const V (&d)[4], V (&m)[4]) {
  const V even = -1.6875 * d[2], odd = 1.265625 * d[1];
  m[0] = multiply_add(1.265625, d[0], -2.25 * d[2]);
  m[1] = even - odd;
  m[2] = even + odd;
  m[3] = multiply_add(-0.5625, d[1], d[3]);
}

// Adjoint of output_transform for gradients: transforms those of four results of a line to six
// points.
template <typename V>
DETOPS_INLINE void to_points(const V (&y)[4], V (&m)[6]) {
  const V even1 = multiply_add(0.5625, y[2], y[0]),
          odd1 = multiply_add(0.421875, y[3], 0.75 * y[1]);
  const V even2 = multiply_add(2.25, y[2], y[0]), odd2 = multiply_add(3.375, y[3], 1.5 * y[1]);
  m[0] = y[0];
  m[1] = even1 + odd1;
  m[2] = even1 - odd1;
  m[3] = y[3];
  m[4] = even2 + odd2;
  m[5] = even2 - odd2;
}

// Transforms the gradients of two results to four points.
template <typename V>
DETOPS_INLINE void to_points(const V (&y)[2], V (&m)[4]) {
  const V odd = 0.75 * y[1];
  m[0] = y[0];
  m[1] = y[0] + odd;
  m[2] = y[0] - odd;
  m[3] = y[1];
}

// Transforms the sums at six points to four results of a line.
template <typename V>
DETOPS_INLINE void output_transform(const V (&m)[6], V (&y)[4]) {
  const V even1 = m[1] + m[2], odd1 = m[1] - m[2], even2 = m[4] + m[5], odd2 = m[4] - m[5];
  y[0] = m[0] + even1 + even2;
  y[1] = multiply_add(0.75, odd1, 1.5 * odd2);
  y[2] = multiply_add(0.5625, even1, 2.25 * even2);
  y[3] = multiply_add(0.421875, odd1, multiply_add(3.375, odd2, m[3]));
}

// Transforms the sums at four points to two results.
template <typename V>
DETOPS_INLINE void output_transform(const V (&m)[4], V (&y)[2]) {
  y[0] = m[0] + m[1] + m[2];
  y[1] = multiply_add(0.75, m[1] - m[2], m[3]);
}

// Transforms three weights of a line to six points.
template <typename V>
DETOPS_INLINE void weight_transform(const V (&w)[3], V (&points)[6]) {
  using T = std::remove_reference_t<decltype(w[0][0])>;
  constexpr T kEven[2][2] = {{T(-128. / 243), T(-8. / 27)}, {T(32. / 243), T(8. / 27)}};
  const V even1 = kEven[0][0] * w[0] + kEven[0][1] * w[2], odd1 = T(-32. / 81) * w[1];
  const V even2 = kEven[1][0] * w[0] + kEven[1][1] * w[2], odd2 = T(16. / 81) * w[1];
  points[0] = T(64. / 81) * w[0];
  points[1] = even1 + odd1;
  points[2] = even1 - odd1;
  points[3] = w[2];
  points[4] = even2 + odd2;
  points[5] = even2 - odd2;
}

// Transforms the kernels of a panel, weights[9] of `size` elements each, to planes[36] of the same.
template <typename T>
void winograd_weights(const T* weights, int64_t size, T* planes) {
  for (int64_t i = 0; i < size; i += kLanes<T>) {
    Vector<T> half[6][3], line[6];
    DETOPS_UNROLL for (int64_t x = 0; x < 3; ++x) {
      const T* column = weights + x * size + i;
      const Vector<T> w[3] = {load(column), load(column + 3 * size), load(column + 6 * size)};
      weight_transform(w, line);
      DETOPS_UNROLL for (int64_t y = 0; y < 6; ++y) half[y][x] = line[y];
    }
    DETOPS_UNROLL for (int64_t y = 0; y < 6; ++y) {
      weight_transform(half[y], line);
      DETOPS_UNROLL for (int64_t x = 0; x < 6; ++x)
          store(planes + plane_index(y, x) * size + i, line[x]);
    }
  }
}

// Transforms a tile's input, or the gradients of its results, and stores the points in their
// planes. Pixels off the feature map count as zeros.
template <int64_t kTileHeight, int64_t kTileWidth, bool kGradients, typename T>
DETOPS_INLINE void transform_tile(const ConvSizes& s, const Tile& tile, const T* maps,
                                  const T* zeros, T* values, int64_t plane) {
  constexpr int64_t kRows = kGradients ? kTileHeight - 2 : kTileHeight;
  constexpr int64_t kColumns = kGradients ? kTileWidth - 2 : kTileWidth;
  const int64_t height = kGradients ? s.output_height : s.height;
  const int64_t width = kGradients ? s.output_width : s.width;
  const int64_t channels = kGradients ? s.outputs : s.channels;
  const int64_t top = kGradients ? tile.y : tile.y - s.padding_y;
  const int64_t left = kGradients ? tile.x : tile.x - s.padding_x;
  const T* image = maps + tile.image * height * width * channels;
  const T* pixels[kRows][kColumns];
  const int64_t next_tile = 4 * channels;  // its first two columns are the last two of this one
  for (int64_t y = 0; y < kRows; ++y) {
    for (int64_t x = 0; x < kColumns; ++x) {
      const bool inside = top + y >= 0 && top + y < height && left + x >= 0 && left + x < width;
      pixels[y][x] = inside ? image + ((top + y) * width + left + x) * channels : zeros;
    }
  }
  for (int64_t c = 0; c < channels; c += kLanes<T>) {
    Vector<T> half[kTileHeight][kColumns];
    DETOPS_UNROLL for (int64_t x = 0; x < kColumns; ++x) {
      Vector<T> line[kRows], points[kTileHeight];
      DETOPS_UNROLL for (int64_t y = 0; y < kRows; ++y) {
        if (x >= 2) prefetch(pixels[y][x] + c + next_tile);
        line[y] = load_first(pixels[y][x] + c, channels - c);
      }
      to_points(line, points);
      DETOPS_UNROLL for (int64_t y = 0; y < kTileHeight; ++y) half[y][x] = points[y];
    }
    DETOPS_UNROLL for (int64_t y = 0; y < kTileHeight; ++y) {
      Vector<T> points[kTileWidth];
      to_points(half[y], points);
      DETOPS_UNROLL for (int64_t x = 0; x < kTileWidth; ++x) {
        store(values + plane_index(y, x) * plane + c, points[x]);
      }
    }
  }
}

// Writes the results of a tile, clipped to the output.
template <int64_t kTileHeight, int64_t kTileWidth, typename T>
DETOPS_INLINE void write_results(const ConvSizes& s, const Tile& tile, const T* sums, int64_t plane,
                                 int64_t next_row, const Epilogue<T>& epilogue) {
  const int64_t pixel = (tile.image * s.output_height + tile.y) * s.output_width + tile.x;
  const int64_t rows_left = s.output_height - tile.y, columns_left = s.output_width - tile.x;
  const int64_t rows = rows_left < kTileHeight - 2 ? rows_left : kTileHeight - 2;
  const int64_t columns = columns_left < kTileWidth - 2 ? columns_left : kTileWidth - 2;
  for (int64_t o = 0; o < epilogue.outputs; o += kLanes<T>) {
    Vector<T> half[kTileHeight - 2][kTileWidth];
    DETOPS_UNROLL for (int64_t x = 0; x < kTileWidth; ++x) {
      Vector<T> line[kTileHeight], results[kTileHeight - 2];
      DETOPS_UNROLL for (int64_t y = 0; y < kTileHeight; ++y) {
        const T* sum = sums + plane_index(y, x) * plane + o;
        prefetch(sum + next_row);
        line[y] = load(sum);
      }
      output_transform(line, results);
      DETOPS_UNROLL for (int64_t y = 0; y < kTileHeight - 2; ++y) half[y][x] = results[y];
    }
    for (int64_t y = 0; y < rows; ++y) {
      Vector<T> results[kTileWidth - 2];
      output_transform(half[y], results);
      for (int64_t x = 0; x < columns; ++x) {
        const int64_t row = pixel + y * s.output_width + x;
        prefetch(epilogue.out + (row + 4) * epilogue.stride + o);
        apply_epilogue(epilogue, row, o, results[x]);
      }
    }
  }
}

// Calls run(height, width) with the size of a tile in points as compile-time constants.
template <typename Run>
DETOPS_INLINE void with_size(TileSize size, const Run& run) {
  constexpr std::integral_constant<int64_t, 4> four{};
  constexpr std::integral_constant<int64_t, 6> six{};
  if (size == k6x4) return run(six, four);
  if (size == k6x6) return run(six, six);
  if (size == k4x6) return run(four, six);
  run(four, four);
}

// Transforms tiles [begin, end) of a block to points. Each plane has one row per tile.
template <bool kGradients, typename T>
void winograd_points(const ConvSizes& s, const TileBlock& block, const T* maps, int64_t begin,
                     int64_t end, const T* zeros, T* values, int64_t plane) {
  const int64_t stride = winograd_row_stride(kGradients ? s.outputs : s.channels);
  for (int64_t t = begin; t < end; ++t) {
    const Tile& tile = block[t];
    T* row = values + tile.row * stride;
    with_size(tile.size, [&](auto height, auto width) {
      transform_tile<height, width, kGradients>(s, tile, maps, zeros, row, plane);
    });
  }
}

// Computes the results of a block of tiles.
template <typename T>
void winograd_tiles(const ConvSizes& s, const TileBlock& block, const ConvData<T>& data,
                    const T* zeros, T* values, T* sums) {
  const int64_t count = block.count(), panels = panel_count(s.outputs), zero_offset = 0;
  const int64_t value_stride = winograd_row_stride(s.channels), value_plane = count * value_stride;
  const int64_t sum_stride = winograd_row_stride(panels * kPanel), sum_plane = count * sum_stride;
  winograd_points<false>(s, block, data.input, 0, count, zeros, values, value_plane);
  for (const PlaneGroup& group : kPlaneGroups) {
    const int64_t begin = block.begin(group), rows = block.end(group) - begin;
    for (int64_t i = group.first; i < group.first + group.count; ++i) {
      for (int64_t p = 0; p < panels; ++p) {
        const T* panel = data.weights + (i * panels + p) * s.channels * kPanel;
        T* to = sums + i * sum_plane + begin * sum_stride + p * kPanel;
        multiply_rows(rows, values + i * value_plane + begin * value_stride, value_stride,
                      {&zero_offset, 1, s.channels}, panel,
                      Epilogue<T>{nullptr, nullptr, to, sum_stride, kPanel, false});
      }
    }
  }
  const Epilogue<T> epilogue{data.bias, data.add, data.output, s.outputs, s.outputs, data.relu};
  for (int64_t t = 0; t < count; ++t) {
    const Tile& tile = block[t];
    const T* row = sums + tile.row * sum_stride;
    with_size(tile.size, [&](auto height, auto width) {
      write_results<height, width>(s, tile, row, sum_plane, sum_stride, epilogue);
    });
  }
}

// Transforms the sums at six points to the gradients of three weights of a line.
template <typename V>
DETOPS_INLINE void weight_gradient_transform(const V (&m)[6], V (&w)[3]) {
  using T = std::remove_reference_t<decltype(m[0][0])>;
  const V even1 = m[1] + m[2], odd1 = m[2] - m[1], even2 = m[4] + m[5], odd2 = m[4] - m[5];
  w[0] = T(64. / 81) * m[0] - T(128. / 243) * even1 + T(32. / 243) * even2;
  w[1] = T(32. / 81) * odd1 + T(16. / 81) * odd2;
  w[2] = T(8. / 27) * (even2 - even1) + m[3];
}

// Transforms one output's sums at the points, for all channels, to kernels [9, channels].
template <typename T>
void winograd_weight_gradients(const T* sums, int64_t plane, int64_t channels, T* kernels) {
  for (int64_t c = 0; c < channels; c += kLanes<T>) {
    Vector<T> half[3][6], w[3];
    DETOPS_UNROLL for (int64_t x = 0; x < 6; ++x) {
      Vector<T> column[6];
      DETOPS_UNROLL for (int64_t y = 0; y < 6; ++y) {
        column[y] = load_first(sums + plane_index(y, x) * plane + c, channels - c);
      }
      weight_gradient_transform(column, w);
      DETOPS_UNROLL for (int64_t y = 0; y < 3; ++y) half[y][x] = w[y];
    }
    DETOPS_UNROLL for (int64_t y = 0; y < 3; ++y) {
      weight_gradient_transform(half[y], w);
      DETOPS_UNROLL for (int64_t x = 0; x < 3; ++x) {
        store_first(kernels + (y * 3 + x) * channels + c, w[x], channels - c);
      }
    }
  }
}
