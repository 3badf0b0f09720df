// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../simd/functions.inl"
#include "../simd/product.inl"
//
#include "../../math/gates.inl"

// The result of a row does not depend on the number of rows.

// 8 x 3 accumulators fit in 32 registers, 4 x 3 in 16.
constexpr int kTileRows = DETOPS_VECTOR_BYTES == 64 ? 8 : 4;

template <int kRows, int kVectors>
DETOPS_INLINE void product_tile(const Product& p, int64_t row) {
  float* out = p.out + row * p.out_row;
  Vector<float> acc[kRows][kVectors] = {};
  const auto each = [&](const auto& visit) {
    DETOPS_UNROLL for (int r = 0; r < kRows; ++r) {
      DETOPS_UNROLL for (int v = 0; v < kVectors; ++v)
          visit(out + r * p.out_row + v * kLanes<float>, p.columns - v * kLanes<float>, acc[r][v]);
    }
  };
  if (p.add) each([](float* to, int64_t n, Vector<float>& sums) { sums = load_first(to, n); });
  multiply<kRows, kVectors>(p.left + row * p.left_row, p.right,
                            {p.left_row, p.left_depth, p.right_row}, p.depth, p.columns, acc);
  each([](float* to, int64_t n, const Vector<float>& sums) { store_first(to, sums, n); });
}

// Fills a vector with copies of two adjacent elements.
DETOPS_INLINE Vector<float> splat_pair(const float* p) {
  int64_t both;
  __builtin_memcpy(&both, p, sizeof both);
  return (Vector<float>)splat(both);
}

// Like product_tile for at most one vector of columns, two depths at a time. Every two rows of the
// right matrix are interleaved, so loading a pair of left elements serves kVectors products. One
// load per element, as in product_tile, would take longer than the product.
template <int kRows, int kVectors>
DETOPS_INLINE void product_pairs_tile(const Product& p, int64_t row) {
  const float* left = p.left + row * p.left_row;
  Vector<float> acc[kRows][2] = {};
  int64_t k = 0;
  for (; k + 1 < p.depth; k += 2) {
    Vector<float> pairs[kVectors];
    DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) pairs[v] =
        load(p.right + (k + v) * kLanes<float>);
    DETOPS_UNROLL for (int r = 0; r < kRows; ++r) {
      const Vector<float> x = splat_pair(left + r * p.left_row + k);
      DETOPS_UNROLL for (int v = 0; v < kVectors; ++v) acc[r][v] = fused(x, pairs[v], acc[r][v]);
    }
  }
  DETOPS_UNROLL for (int r = 0; r < kRows; ++r) {
    float* out = p.out + (row + r) * p.out_row;
    unzip<float>(acc[r][0], acc[r][1], AllLanes<float>());
    Vector<float> sums = acc[r][0] + acc[r][1];
    if (k < p.depth) {
      sums = fused(splat(left[r * p.left_row + k]), load(p.right + k * kLanes<float>), sums);
    }
    if (p.add) sums += load_first(out, p.columns);
    store_first(out, sums, p.columns);
  }
}

void product_pairs(Product p, int64_t begin, int64_t end) {
  alignas(64) float packed[kProductDepth * kLanes<float>];
  const int64_t columns = p.columns < kLanes<float> ? p.columns : kLanes<float>;
  transpose_matrix(p.right, p.right_column, columns, p.depth, packed, kLanes<float>);
  for (int64_t k = 0; k < p.depth; k += 2) {
    float *first = packed + k * kLanes<float>, *second = first + kLanes<float>;
    Vector<float> a = load_first(first, columns);
    if (k + 1 < p.depth) {
      Vector<float> b = load_first(second, columns);
      zip<float>(a, b, AllLanes<float>());
      store(second, b);
    }
    store(first, a);
  }
  p.right = packed;
  const bool half = 2 * columns <= kLanes<float>;
  const auto tile = half ? product_pairs_tile<kTileRows, 1> : product_pairs_tile<kTileRows, 2>;
  const auto one = half ? product_pairs_tile<1, 1> : product_pairs_tile<1, 2>;
  int64_t row = begin;
  for (; row + kTileRows <= end; row += kTileRows) tile(p, row);
  for (; row < end; ++row) one(p, row);
}

// Computes the first kVectors vectors of columns. A single vector may be partial. The right matrix
// is packed if many rows read it: in place, its rows may map to the same few L1 cache sets.
template <int kVectors>
void product_columns(Product p, int64_t begin, int64_t end) {
  constexpr int64_t kColumns = kVectors * kLanes<float>;
  alignas(64) float packed[kProductDepth * kColumns];
  if (end - begin > 64) {
    for (int64_t k = 0; k < p.depth; ++k) {
      for (int64_t j = 0; j < kColumns; j += kLanes<float>) {
        store(packed + k * kColumns + j,
              load_first(p.right + k * p.right_row + j, kVectors > 1 ? kLanes<float> : p.columns));
      }
    }
    p.right = packed;
    p.right_row = kColumns;
  }
  int64_t row = begin;
  for (; row + kTileRows <= end; row += kTileRows) product_tile<kTileRows, kVectors>(p, row);
  for (; row < end; ++row) product_tile<1, kVectors>(p, row);
}

// Computes rows [begin, end) in parts along the depth, so that the packed part fits in L1.
void product(const Product& p, int64_t begin, int64_t end) {
  Product part = p;
  const bool transposed = p.columns > 1 && p.right_column != 1;
  for (int64_t k = 0; k == 0 || k < p.depth; k += kProductDepth, part.add = true) {
    part.left = p.left + k * p.left_depth;
    part.depth = p.depth - k < kProductDepth ? p.depth - k : kProductDepth;
    for (int64_t j = 0, vectors = 1; j < p.columns; j += vectors * kLanes<float>) {
      part.right = p.right + k * p.right_row + j * p.right_column;
      part.out = p.out + j;
      part.columns = p.columns - j;
      if (transposed) {
        product_pairs(part, begin, end);
        continue;
      }
      vectors = part.columns / kLanes<float>;
      vectors = vectors < 1 ? 1 : vectors > 3 ? 3 : vectors;
      const auto run = vectors == 3   ? product_columns<3>
                       : vectors == 2 ? product_columns<2>
                                      : product_columns<1>;
      run(part, begin, end);
    }
  }
}

template <typename T>
void sum_rows(const T* row, int64_t rows, int64_t columns, T* sum) {
  for (int64_t j = 0; j < columns; ++j) sum[j] = 0;
  for (const T* end = row + rows * columns; row < end; row += columns) {
    for (int64_t j = 0; j < columns; ++j) sum[j] += row[j];
  }
}

// Every step reads the state's weights, so they are packed once, in blocks as wide as a tile of
// accumulators, depth by depth. A tile then reads them sequentially.

constexpr int kBackwardVectors = 2;

// Packed weights pad the state to a multiple of this size.
template <typename T>
constexpr int64_t kLltmColumns = kBackwardVectors * kLanes<T>;

// Packs the first H columns of weights [3H, ...] with row stride `stride`.
// Forward: [ceil(H / lanes)][H][3][lanes], the three gates of a block of states side by side.
// Backward: [ceil(H / columns)][3H][columns], columns = kBackwardVectors * lanes.
template <bool kBackward, typename T>
void lltm_pack(const T* weights, int64_t stride, int64_t state, T* packed) {
  constexpr int64_t kWidth = kBackward ? kLltmColumns<T> : kLanes<T>;
  for (int64_t j = 0; j < state; j += kWidth) {
    for (int64_t k = 0; k < (kBackward ? 3 * state : state); ++k) {
      for (int64_t g = 0; g < (kBackward ? 1 : 3); ++g) {
        for (int64_t l = 0; l < kWidth; ++l) {
          const int64_t at = kBackward ? k * stride + j + l : (g * state + j + l) * stride + k;
          *packed++ = j + l < state ? weights[at] : T(0);
        }
      }
    }
  }
}

template <int kRows, typename T>
DETOPS_INLINE void lltm_forward_tile(const LltmStep<T>& s, int64_t row, int64_t j) {
  const int64_t n = s.state - j, state = s.state;
  T* gates = s.gates + row * 3 * state + j;
  Vector<T> acc[kRows][3];
  DETOPS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    for (int g = 0; g < 3; ++g) acc[r][g] = load_first(gates + (3 * r + g) * state, n);
  }
  multiply<kRows, 3>(s.state_before + row * state, s.packed + j * s.depth * 3,
                     {state, 1, 3 * kLanes<T>}, s.depth, n, acc);
  for (int r = 0; r < kRows; ++r) {
    const int64_t at = (row + r) * state + j;
    const gates::Lltm<Vector<T>> sums{acc[r][0], acc[r][1], acc[r][2]};
    const gates::Lltm<Vector<T>> gate = gates::activate<T>(sums);
    const Vector<T> cell = gates::next_cell(gate, load_first(s.cell_before + at, n));
    store_first(gates + (3 * r + 0) * state, gate.input, n);
    store_first(gates + (3 * r + 1) * state, gate.output, n);
    store_first(gates + (3 * r + 2) * state, gate.candidate, n);
    store_first(s.cell + at, cell, n);
    store_first(s.state_after + at, gates::next_state(gate, cell), n);
  }
}

// Computes one step of rows [begin, end).
template <typename T>
void lltm_forward(const LltmStep<T>& s, int64_t begin, int64_t end) {
  for (int64_t j = 0; j < s.state; j += kLanes<T>) {
    int64_t row = begin;
    for (; row + kTileRows <= end; row += kTileRows) lltm_forward_tile<kTileRows>(s, row, j);
    for (; row < end; ++row) lltm_forward_tile<1>(s, row, j);
  }
}

template <int kRows, typename T>
DETOPS_INLINE void lltm_backward_tile(const LltmBackwardStep<T>& s, int64_t row, int64_t j) {
  const int64_t state = s.state;
  Vector<T> acc[kRows][kBackwardVectors] = {};
  multiply<kRows, kBackwardVectors>(s.grad_gates + row * 3 * state, s.packed + j * 3 * state,
                                    {3 * state, 1, kLltmColumns<T>}, 3 * state, state - j, acc);
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kBackwardVectors; ++v) {
      const int64_t column = j + v * kLanes<T>;
      if (column >= state) break;
      store_first(s.grad_state + (row + r) * state + column, acc[r][v], state - column);
    }
  }
}

// Computes one step back of rows [begin, end): gradients of the gates, then of the previous state.
template <typename T>
void lltm_backward(const LltmBackwardStep<T>& s, int64_t begin, int64_t end) {
  const int64_t state = s.state;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t j = 0; j < state; j += kLanes<T>) {
      const int64_t n = state - j, at = row * state + j, gate_at = 3 * row * state + j;
      const gates::Lltm<Vector<T>> gate{load_first(s.gates + gate_at, n),
                                        load_first(s.gates + gate_at + state, n),
                                        load_first(s.gates + gate_at + 2 * state, n)};
      Vector<T> grad_state = load_first(s.grad_output + at, n);
      if (s.grad_state != nullptr) grad_state += load_first(s.grad_state + at, n);
      Vector<T> grad_cell = load_first(s.grad_cell + at, n);
      const gates::Lltm<Vector<T>> grad =
          gates::gradient<T>(gate, load_first(s.cell + at, n), grad_state, grad_cell);
      store_first(s.grad_cell + at, grad_cell, n);
      store_first(s.grad_gates + gate_at, grad.input, n);
      store_first(s.grad_gates + gate_at + state, grad.output, n);
      store_first(s.grad_gates + gate_at + 2 * state, grad.candidate, n);
    }
  }
  if (s.packed == nullptr) return;
  for (int64_t j = 0; j < state; j += kBackwardVectors * kLanes<T>) {
    int64_t row = begin;
    for (; row + kTileRows <= end; row += kTileRows) lltm_backward_tile<kTileRows>(s, row, j);
    for (; row < end; ++row) lltm_backward_tile<1>(s, row, j);
  }
}
