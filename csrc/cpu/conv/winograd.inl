// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. "Fast Algorithms for Convolutional Neural
// Networks" (Lavin and Gray, 2016), section 4.1: F(4x4, 3x3), at the points 0, +-3/4, infinity and
// +-3/2. The usual 0, +-1, +-2 give twice the rounding error, and four times the largest. The first
// four are those of F(2, 3), whose transforms of inputs are scaled to the same weights.

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
  d[3] = times_add(1.265625, d[1], times_add(-2.8125, d[3], d[5]));
  d[1] = times_add(0.75, odd1, even1);
  d[2] = times_add(-0.75, odd1, even1);
  d[4] = times_add(1.5, odd2, even2);
  d[5] = times_add(-1.5, odd2, even2);
}

// Four values likewise.
template <typename V>
DETOPS_INLINE void transform_line(V (&d)[4]) {
  const V even = -1.6875 * d[2], odd = 1.265625 * d[1];
  d[0] = times_add(1.265625, d[0], -2.25 * d[2]);
  d[3] = times_add(-0.5625, d[1], d[3]);
  d[1] = even - odd;
  d[2] = even + odd;
}

// The sums of six points become the four results of a line.
template <typename V>
DETOPS_INLINE void result_line(const V (&m)[6], V (&y)[4]) {
  const V even1 = m[1] + m[2], odd1 = m[1] - m[2], even2 = m[4] + m[5], odd2 = m[4] - m[5];
  y[0] = m[0] + even1 + even2;
  y[1] = times_add(0.75, odd1, 1.5 * odd2);
  y[2] = times_add(0.5625, even1, 2.25 * even2);
  y[3] = times_add(0.421875, odd1, times_add(3.375, odd2, m[3]));
}

// Those of four points the two results.
template <typename V>
DETOPS_INLINE void result_line(const V (&m)[4], V (&y)[2]) {
  y[0] = m[0] + m[1] + m[2];
  y[1] = times_add(0.75, m[1] - m[2], m[3]);
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
  points[3] = w[2];
  points[4] = even2 + odd2;
  points[5] = even2 - odd2;
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

// The pixels of a tile, at pixels[kDown * kAcross], to as many planes of values.
template <int64_t kDown, int64_t kAcross, typename T>
DETOPS_INLINE void transform_tile(const T* const* pixels, int64_t channels, T* values,
                                  int64_t plane) {
  for (int64_t c = 0; c < channels; c += kLanes<T>) {
    Vector<T> half[kDown][kAcross];
    DETOPS_UNROLL for (int64_t x = 0; x < kAcross; ++x) {
      Vector<T> line[kDown];
      DETOPS_UNROLL for (int64_t y = 0; y < kDown; ++y) {
        line[y] = load_first(pixels[y * kAcross + x] + c, channels - c);
      }
      transform_line(line);
      DETOPS_UNROLL for (int64_t y = 0; y < kDown; ++y) half[y][x] = line[y];
    }
    DETOPS_UNROLL for (int64_t y = 0; y < kDown; ++y) {
      transform_line(half[y]);
      DETOPS_UNROLL for (int64_t x = 0; x < kAcross; ++x) {
        store(values + (y * kAcross + x) * plane + c, half[y][x]);
      }
    }
  }
}

// The results of a tile whose first pixel is `pixel`, as far as they are on the map.
template <int64_t kDown, int64_t kAcross, typename T>
DETOPS_INLINE void finish_tile(const T* sums, int64_t plane, int64_t pixel, int64_t row_length,
                               int64_t rows, int64_t columns, const Finish<T>& finish) {
  for (int64_t o = 0; o < finish.outputs; o += kLanes<T>) {
    Vector<T> half[kDown - 2][kAcross];
    DETOPS_UNROLL for (int64_t x = 0; x < kAcross; ++x) {
      Vector<T> line[kDown], results[kDown - 2];
      DETOPS_UNROLL for (int64_t y = 0; y < kDown; ++y) {
        line[y] = load(sums + (y * kAcross + x) * plane + o);
      }
      result_line(line, results);
      DETOPS_UNROLL for (int64_t y = 0; y < kDown - 2; ++y) half[y][x] = results[y];
    }
    for (int64_t y = 0; y < rows; ++y) {
      Vector<T> results[kAcross - 2];
      result_line(half[y], results);
      for (int64_t x = 0; x < columns; ++x) {
        finish_vector(finish, pixel + y * row_length + x, o, results[x]);
      }
    }
  }
}

// Where the pixels of a tile are, row by row from (top, left) on; zeros beyond the map.
template <int64_t kDown, int64_t kAcross, typename T>
DETOPS_INLINE void find_pixels(const T* image, int64_t height, int64_t width, int64_t channels,
                               int64_t top, int64_t left, const T* zeros, const T** pixels) {
  for (int64_t y = 0; y < kDown; ++y) {
    for (int64_t x = 0; x < kAcross; ++x) {
      const bool inside = top + y >= 0 && top + y < height && left + x >= 0 && left + x < width;
      pixels[y * kAcross + x] = inside ? image + ((top + y) * width + left + x) * channels : zeros;
    }
  }
}

// The first result of a tile.
struct TilePlace {
  int64_t image, y, x;
};

DETOPS_INLINE TilePlace place_of(const WinogradTiles& tiles, int64_t tile) {
  return {tile / (tiles.down * tiles.across), tiles.y + tile / tiles.across % tiles.down * 4,
          tiles.x + tile % tiles.across * 4};
}

template <int64_t kDown, int64_t kAcross, typename T>
DETOPS_INLINE void transform_inputs(const ConvSizes& s, const WinogradTiles& tiles, const T* input,
                                    int64_t first, int64_t count, const T* zeros, T* values,
                                    int64_t plane) {
  for (int64_t t = 0; t < count; ++t) {
    const TilePlace at = place_of(tiles, first + t);
    const T* pixels[kDown * kAcross];
    find_pixels<kDown, kAcross>(input + at.image * s.height * s.width * s.channels, s.height,
                                s.width, s.channels, at.y - s.padding_y, at.x - s.padding_x, zeros,
                                pixels);
    transform_tile<kDown, kAcross>(pixels, s.channels, values + t * winograd_stride(s.channels),
                                   plane);
  }
}

template <int64_t kDown, int64_t kAcross, typename T>
DETOPS_INLINE void finish_tiles(const ConvSizes& s, const WinogradTiles& tiles,
                                const ConvData<T>& data, int64_t first, int64_t count,
                                const T* sums, int64_t stride, int64_t plane) {
  const Finish<T> finish{data.bias, data.add, data.output, s.outputs, s.outputs, data.relu};
  for (int64_t t = 0; t < count; ++t) {
    const TilePlace at = place_of(tiles, first + t);
    const int64_t pixel = (at.image * s.output_height + at.y) * s.output_width + at.x;
    const int64_t rows = s.output_height - at.y, columns = s.output_width - at.x;
    finish_tile<kDown, kAcross>(sums + t * stride, plane, pixel, s.output_width,
                                rows < kDown - 2 ? rows : kDown - 2,
                                columns < kAcross - 2 ? columns : kAcross - 2, finish);
  }
}

// function<points_y, points_x>(arguments...) of tiles of any size.
#define DETOPS_OF_TILES(tiles, function, ...)                                            \
  do {                                                                                   \
    if ((tiles).points_y == 6) {                                                         \
      (tiles).points_x == 6 ? function<6, 6>(__VA_ARGS__) : function<6, 4>(__VA_ARGS__); \
    } else {                                                                             \
      (tiles).points_x == 6 ? function<4, 6>(__VA_ARGS__) : function<4, 4>(__VA_ARGS__); \
    }                                                                                    \
  } while (false)

// The input of tiles from `first` on at their points: planes of rows, a row per tile.
template <typename T>
void winograd_inputs(const ConvSizes& s, const WinogradTiles& tiles, const T* input, int64_t first,
                     int64_t count, const T* zeros, T* values, int64_t plane) {
  DETOPS_OF_TILES(tiles, transform_inputs, s, tiles, input, first, count, zeros, values, plane);
}

// A convolution's tiles.
template <typename T>
void winograd_tiles(const ConvSizes& s, const WinogradTiles& tiles, const ConvData<T>& data,
                    int64_t first, int64_t count, const T* zeros, T* values, T* sums) {
  const int64_t value_stride = winograd_stride(s.channels), value_plane = count * value_stride;
  const int64_t panels = panels_of(s.outputs);
  const int64_t sum_stride = winograd_stride(panels * kPanel), sum_plane = count * sum_stride;
  const int64_t origin = 0;
  winograd_inputs(s, tiles, data.input, first, count, zeros, values, value_plane);
  for (int64_t i = 0; i < tiles.planes(); ++i) {
    const int64_t plane = i / tiles.points_x * kWinogradPoints + i % tiles.points_x;
    for (int64_t p = 0; p < panels; ++p) {
      const T* panel = data.weights + (plane * panels + p) * s.channels * kPanel;
      T* to = sums + i * sum_plane + p * kPanel;
      multiply_rows(count, values + i * value_plane, value_stride, {&origin, 1, s.channels}, panel,
                    Finish<T>{nullptr, nullptr, to, sum_stride, kPanel, false});
    }
  }
  DETOPS_OF_TILES(tiles, finish_tiles, s, tiles, data, first, count, sums, sum_stride, sum_plane);
}
