// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

// Rows of a tile: their sums, two vectors each, fill the registers.
constexpr int64_t kTileRows = DETOPS_VECTOR_BYTES == 64 ? 14 : 6;

template <typename T>
DETOPS_INLINE void finish_vector(const Finish<T>& finish, int64_t row, int64_t output,
                                 Vector<T> sum) {
  const int64_t at = row * finish.stride + output, count = finish.outputs - output;
  if (finish.bias != nullptr) sum += load_first(finish.bias + output, count);
  if (finish.add != nullptr) sum += load_first(finish.add + at, count);
  if (finish.relu) sum = sum < 0 ? Vector<T>{} : sum;  // NaN stays
  store_first(finish.out + at, sum, count);
}

// The outputs from `output` on that kVectors vectors hold, of kRows rows: sums over all factors
// times the panel's weights.
template <int64_t kRows, int64_t kVectors, typename T>
DETOPS_INLINE void multiply_tile(const T* rows, int64_t stride, const ConvTaps& taps,
                                 const T* panel, int64_t output, const Finish<T>& finish) {
  constexpr int64_t kWidth = kLanes<T>;
  Vector<T> sums[kRows][kVectors] = {};
  const T* weights = panel + output;
  for (int64_t t = 0; t < taps.count; ++t) {
    const T* from = rows + taps.offsets[t];
    for (int64_t k = 0; k < taps.depth; ++k, weights += kPanel) {
      Vector<T> w[kVectors];
      DETOPS_UNROLL for (int64_t v = 0; v < kVectors; ++v) w[v] = load(weights + v * kWidth);
      DETOPS_UNROLL for (int64_t r = 0; r < kRows; ++r) {
        const Vector<T> x = splat(from[r * stride + k]);
        DETOPS_UNROLL for (int64_t v = 0; v < kVectors; ++v) {
          sums[r][v] = fused(x, w[v], sums[r][v]);
        }
      }
    }
  }
  DETOPS_UNROLL for (int64_t r = 0; r < kRows; ++r) {
    DETOPS_UNROLL for (int64_t v = 0; v < kVectors; ++v) {
      if (output + v * kWidth < finish.outputs) {
        finish_vector(finish, r, output + v * kWidth, sums[r][v]);
      }
    }
  }
}

// Any number of rows times a panel.
template <int64_t kRows = kTileRows, typename T>
DETOPS_INLINE void multiply_rows(int64_t number, const T* rows, int64_t stride,
                                 const ConvTaps& taps, const T* panel, Finish<T> finish) {
  constexpr int64_t kWidth = kLanes<T>;
  for (; number >= kRows; number -= kRows) {
    for (int64_t o = 0; o < finish.outputs; o += 2 * kWidth) {
      if (finish.outputs - o > kWidth) {
        multiply_tile<kRows, 2>(rows, stride, taps, panel, o, finish);
      } else {
        multiply_tile<kRows, 1>(rows, stride, taps, panel, o, finish);
      }
    }
    rows += kRows * stride;
    finish.out += kRows * finish.stride;
    if (finish.add != nullptr) finish.add += kRows * finish.stride;
  }
  if constexpr (kRows > 1) {
    if (number > 0) multiply_rows<kRows / 2>(number, rows, stride, taps, panel, finish);
  }
}
