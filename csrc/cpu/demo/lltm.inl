// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.
//
// The state's weights are used at every step, and so are packed once: blocks of as many columns as
// a tile of accumulators has, depth by depth, so that a tile reads them from end to end.

#include "../simd/exponential.inl"
//
#include "../../math/gates.inl"
#include "product.inl"

constexpr int kBackVectors = 2;

// Packed weights have room for a multiple of this many states.
template <typename T>
constexpr int64_t kLltmColumns = kBackVectors * kLanes<T>;

// Weights [3H, ...] with rows `stride` apart, of which the first H columns are used, to
// [ceil(H / lanes)][H][3][lanes]: the three gates of a block of states side by side.
template <typename T>
void lltm_pack_forward(const T* weights, int64_t stride, int64_t state, T* packed) {
  for (int64_t j = 0; j < state; j += kLanes<T>) {
    for (int64_t k = 0; k < state; ++k) {
      for (int64_t g = 0; g < 3; ++g) {
        for (int64_t l = 0; l < kLanes<T>; ++l) {
          *packed++ = j + l < state ? weights[(g * state + j + l) * stride + k] : T(0);
        }
      }
    }
  }
}

// The same to [ceil(H / columns)][3H][columns], columns = kBackVectors * lanes.
template <typename T>
void lltm_pack_backward(const T* weights, int64_t stride, int64_t state, T* packed) {
  constexpr int64_t kColumns = kLltmColumns<T>;
  for (int64_t j = 0; j < state; j += kColumns) {
    for (int64_t k = 0; k < 3 * state; ++k) {
      for (int64_t l = 0; l < kColumns; ++l) {
        *packed++ = j + l < state ? weights[k * stride + j + l] : T(0);
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
