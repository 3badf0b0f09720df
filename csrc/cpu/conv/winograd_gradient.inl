// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. The adjoint of winograd.inl: its tiles of
// results, of which gradients come, at the 6x6 points.
#include "product.inl"
//
#include "winograd.inl"

// Four values of a line become six points.
template <typename V>
DETOPS_INLINE void spread_line(const V (&y)[4], V (&m)[6]) {
  const V even1 = times_add(0.5625, y[2], y[0]), odd1 = times_add(0.421875, y[3], 0.75 * y[1]);
  const V even2 = times_add(2.25, y[2], y[0]), odd2 = times_add(3.375, y[3], 1.5 * y[1]);
  m[0] = y[0];
  m[1] = even1 + odd1;
  m[2] = even1 - odd1;
  m[3] = y[3];
  m[4] = even2 + odd2;
  m[5] = even2 - odd2;
}

// Two values become four points.
template <typename V>
DETOPS_INLINE void spread_line(const V (&y)[2], V (&m)[4]) {
  const V odd = 0.75 * y[1];
  m[0] = y[0];
  m[1] = y[0] + odd;
  m[2] = y[0] - odd;
  m[3] = y[1];
}

template <int64_t kDown, int64_t kAcross, typename T>
DETOPS_INLINE void spread_gradients(const ConvSizes& s, const Tile& tile, const T* grad,
                                    const T* zeros, T* values, int64_t plane) {
  const T* pixels[(kDown - 2) * (kAcross - 2)];
  find_pixels<kDown - 2, kAcross - 2>(
      grad + tile.image * s.output_height * s.output_width * s.outputs, s.output_height,
      s.output_width, s.outputs, tile.y, tile.x, zeros, pixels);
  for (int64_t o = 0; o < s.outputs; o += kLanes<T>) {
    Vector<T> half[kDown][kAcross - 2];
    DETOPS_UNROLL for (int64_t x = 0; x < kAcross - 2; ++x) {
      Vector<T> line[kDown - 2], points[kDown];
      DETOPS_UNROLL for (int64_t y = 0; y < kDown - 2; ++y) {
        line[y] = load_first(pixels[y * (kAcross - 2) + x] + o, s.outputs - o);
      }
      spread_line(line, points);
      DETOPS_UNROLL for (int64_t y = 0; y < kDown; ++y) half[y][x] = points[y];
    }
    DETOPS_UNROLL for (int64_t y = 0; y < kDown; ++y) {
      Vector<T> points[kAcross];
      spread_line(half[y], points);
      DETOPS_UNROLL for (int64_t x = 0; x < kAcross; ++x) {
        store(values + plane_of(y, x) * plane + o, points[x]);
      }
    }
  }
}

// The gradients of tiles [begin, end) of a block, as winograd_inputs.
template <typename T>
void winograd_gradients(const ConvSizes& s, const TileBlock& block, const T* grad, int64_t begin,
                        int64_t end, const T* zeros, T* values, int64_t plane) {
  const int64_t stride = winograd_stride(s.outputs);
  for (int64_t t = begin; t < end; ++t) {
    const Tile& tile = block[t];
    T* row = values + tile.row * stride;
    DETOPS_OF_SIZE(tile.size, spread_gradients, s, tile, grad, zeros, row, plane);
  }
}

// Six sums of a line become the gradients of its three weights.
template <typename V>
DETOPS_INLINE void kernel_line(const V (&m)[6], V (&w)[3]) {
  using T = std::remove_reference_t<decltype(m[0][0])>;
  const V even1 = m[1] + m[2], odd1 = m[2] - m[1], even2 = m[4] + m[5], odd2 = m[4] - m[5];
  w[0] = T(64. / 81) * m[0] - T(128. / 243) * even1 + T(32. / 243) * even2;
  w[1] = T(32. / 81) * odd1 + T(16. / 81) * odd2;
  w[2] = T(8. / 27) * (even2 - even1) + m[3];
}

// The sums of an output at the points, for all channels, to kernels of [9, channels].
template <typename T>
void winograd_kernels(const T* sums, int64_t plane, int64_t channels, T* kernels) {
  for (int64_t c = 0; c < channels; c += kLanes<T>) {
    Vector<T> half[3][6], w[3];
    DETOPS_UNROLL for (int64_t x = 0; x < 6; ++x) {
      Vector<T> column[6];
      DETOPS_UNROLL for (int64_t y = 0; y < 6; ++y) {
        column[y] = load_first(sums + plane_of(y, x) * plane + c, channels - c);
      }
      kernel_line(column, w);
      DETOPS_UNROLL for (int64_t y = 0; y < 3; ++y) half[y][x] = w[y];
    }
    DETOPS_UNROLL for (int64_t y = 0; y < 3; ++y) {
      kernel_line(half[y], w);
      DETOPS_UNROLL for (int64_t x = 0; x < 3; ++x) {
        store_first(kernels + (y * 3 + x) * channels + c, w[x], channels - c);
      }
    }
  }
}
