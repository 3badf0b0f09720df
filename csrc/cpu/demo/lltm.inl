// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

#include "../simd/functions.inl"
#include "../simd/product.inl"
//
#include "../../math/gates.inl"

// What belongs to one row of a product's result does not depend on how many rows there are.

// 8 x 3 accumulators out of 32 registers, or 4 x 3 out of 16.
constexpr int kTileRows = DETOPS_VECTOR_BYTES == 64 ? 8 : 4;

// With `right` packed: [depth, kVectors * lanes] without gaps.
template <int kRows, int kVectors, typename T>
DETOPS_INLINE void multiply_packed(const T* left, int64_t left_row, const T* packed, int64_t depth,
                                   Vector<T> (&acc)[kRows][kVectors]) {
  constexpr int64_t kColumns = kVectors * kLanes<T>;
  multiply<kRows, kVectors>(left, packed, {left_row, 1, kColumns}, depth, kColumns, acc);
}

// A tile of a product of matrices that are used once, and so are not packed.
template <int kRows, int kVectors, typename T>
DETOPS_INLINE void product_tile(const SmallProduct<T>& p, int64_t row, int64_t column) {
  const T *left = p.left + row * p.left_row, *right = p.right + column;
  const int64_t n = p.columns - column;
  Vector<T> acc[kRows][kVectors] = {};
  multiply<kRows, kVectors>(left, right, {p.left_row, p.left_depth, p.right_row}, p.depth, n, acc);
  DETOPS_UNROLL for (int r = 0; r < kRows; ++r) {
    T* out = p.out + (row + r) * p.out_row + column;
    DETOPS_UNROLL for (int v = 0; v < kVectors; ++v)
        store_first(out + v * kLanes<T>, acc[r][v], n - v * kLanes<T>);
  }
}

template <int kRows, typename T>
DETOPS_INLINE void product_rows(const SmallProduct<T>& p, int64_t row) {
  int64_t column = 0;
  for (; column + 3 * kLanes<T> <= p.columns; column += 3 * kLanes<T>) {
    product_tile<kRows, 3>(p, row, column);
  }
  for (; column < p.columns; column += kLanes<T>) product_tile<kRows, 1>(p, row, column);
}

template <typename T>
void small_product(const SmallProduct<T>& p) {
  int64_t row = 0;
  for (; row + kTileRows <= p.rows; row += kTileRows) product_rows<kTileRows>(p, row);
  for (; row < p.rows; ++row) product_rows<1>(p, row);
}

// A tile of kRows columns of the result, for as many of its rows as there are lanes.
template <int kRows, typename T>
DETOPS_INLINE void turned_tile(const TurnedProduct<T>& p, int64_t column, Vector<T>* tile) {
  const int64_t depth = p.depth + p.more_depth;
  Vector<T> acc[kRows][1];
  DETOPS_UNROLL for (int r = 0; r < kRows; ++r) acc[r][0] = splat(p.bias[column + r]);
  multiply_packed<kRows, 1>(p.right + column * depth, depth, p.scratch, depth, acc);
  DETOPS_UNROLL for (int r = 0; r < kRows; ++r) tile[r] = acc[r][0];
}

// turned[k, lane] = rows[lane, k], zero for the lanes from `count` on.
template <typename T>
DETOPS_INLINE void turn(const T* rows, int64_t count, int64_t depth, T* turned) {
  constexpr int64_t kWidth = kLanes<T>;
  for (int64_t k = 0; k < depth; k += kWidth) {
    Vector<T> square[kWidth];
    load_turned(rows + k, depth, count, depth - k, square);
    for (int64_t i = 0; i < kWidth && k + i < depth; ++i) {
      store(turned + (k + i) * kWidth, square[i]);
    }
  }
}

// With rows in the lanes, the right matrix is read as it lies, and only the few rows are turned.
template <typename T>
void turned_product(const TurnedProduct<T>& p) {
  constexpr int64_t kWidth = kLanes<T>;
  for (int64_t row = 0; row < p.rows; row += kWidth) {
    const int64_t n = p.rows - row < kWidth ? p.rows - row : kWidth;
    turn(p.left + row * p.depth, n, p.depth, p.scratch);
    turn(p.more + row * p.more_depth, n, p.more_depth, p.scratch + p.depth * kWidth);
    for (int64_t column = 0; column < p.columns; column += kWidth) {
      Vector<T> tile[kWidth] = {};
      int64_t i = 0;
      for (; i + kTileRows <= kWidth && column + i + kTileRows <= p.columns; i += kTileRows) {
        turned_tile<kTileRows>(p, column + i, tile + i);
      }
      for (; i < kWidth && column + i < p.columns; ++i) turned_tile<1>(p, column + i, tile + i);
      transpose<T>(tile);
      for (int64_t r = 0; r < n; ++r) {
        store_first(p.out + (row + r) * p.columns + column, tile[r], p.columns - column);
      }
    }
  }
}

// The state's weights are used at every step, and so are packed once: blocks of as many columns as
// a tile of accumulators has, depth by depth, so that a tile reads them from end to end.

constexpr int kBackVectors = 2;

// Packed weights have room for a multiple of this many states.
template <typename T>
constexpr int64_t kLltmColumns = kBackVectors * kLanes<T>;

// Weights [3H, ...] with rows `stride` apart, of which the first H columns are used, to
// [ceil(H / lanes)][H][3][lanes], the three gates of a block of states side by side, or on the way
// back to [ceil(H / columns)][3H][columns], columns = kBackVectors * lanes.
template <bool kBack, typename T>
void lltm_pack(const T* weights, int64_t stride, int64_t state, T* packed) {
  constexpr int64_t kWidth = kBack ? kLltmColumns<T> : kLanes<T>;
  for (int64_t j = 0; j < state; j += kWidth) {
    for (int64_t k = 0; k < (kBack ? 3 * state : state); ++k) {
      for (int64_t g = 0; g < (kBack ? 1 : 3); ++g) {
        for (int64_t l = 0; l < kWidth; ++l) {
          const int64_t at = kBack ? k * stride + j + l : (g * state + j + l) * stride + k;
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
  multiply_packed<kRows, 3>(s.state_before + row * state, state, s.packed + j * s.depth * 3,
                            s.depth, acc);
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

// One step of rows [begin, end).
template <typename T>
void lltm_forward(const LltmStep<T>& s, int64_t begin, int64_t end) {
  for (int64_t j = 0; j < s.state; j += kLanes<T>) {
    int64_t row = begin;
    for (; row + kTileRows <= end; row += kTileRows) lltm_forward_tile<kTileRows>(s, row, j);
    for (; row < end; ++row) lltm_forward_tile<1>(s, row, j);
  }
}

template <int kRows, typename T>
DETOPS_INLINE void lltm_backward_tile(const LltmBackStep<T>& s, int64_t row, int64_t j) {
  const int64_t state = s.state;
  Vector<T> acc[kRows][kBackVectors] = {};
  multiply_packed<kRows, kBackVectors>(s.grad_gates + row * 3 * state, 3 * state,
                                       s.packed + j * 3 * state, 3 * state, acc);
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kBackVectors; ++v) {
      const int64_t column = j + v * kLanes<T>;
      if (column >= state) break;
      store_first(s.grad_state + (row + r) * state + column, acc[r][v], state - column);
    }
  }
}

// One step back of rows [begin, end): the gradients of the gates, then of the state before.
template <typename T>
void lltm_backward(const LltmBackStep<T>& s, int64_t begin, int64_t end) {
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
  for (int64_t j = 0; j < state; j += kBackVectors * kLanes<T>) {
    int64_t row = begin;
    for (; row + kTileRows <= end; row += kTileRows) lltm_backward_tile<kTileRows>(s, row, j);
    for (; row < end; ++row) lltm_backward_tile<1>(s, row, j);
  }
}
