// SPDX-License-Identifier: MIT
#include "../../products.h"
#include "../common/launch.cuh"

namespace detops::math {

#include "../../math/gates.inl"

}  // namespace detops::math

// Per step one product by cuBLAS and one pass over the gates, launched one behind the other on the
// current stream: the host waits for nothing, and a CUDA graph can hold the whole loop.
namespace detops::cuda {
namespace {

// Blocks for the gates of a step: rows of states, a thread each. So a small step reaches many
// multiprocessors, and no thread divides. Vectors would leave a step, whose time is latency, with
// fewer threads.
constexpr unsigned kGateThreads = 128;

Launch gate_launch(int64_t rows, int64_t state) {
  return {dim3(blocks_for(state, kGateThreads), std::min(blocks_for(rows, 1), 65535u)),
          kGateThreads};
}

// Calls visit(i, gate) for a thread's states: where they are in [B, H], and in [B, 3H].
template <typename Visit>
__device__ void visit_states(int64_t rows, int64_t state, const Visit& visit) {
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    DETOPS_FOR_EACH(i, state) visit(row * state + i, row * 3 * state + i);
  }
}

template <typename T>
struct LltmParams {
  int64_t rows, state;
  const T* cell_before;  // [B, H]
  T* gates;              // [B, 3H] in: sums; out: after activation
  T* cell;               // [B, H]
  T* state_after;        // [B, H]
};

template <typename T>
__global__ void lltm_forward_kernel(LltmParams<T> p) {
  visit_states(p.rows, p.state, [&](int64_t i, int64_t at) {
    T* gate_at = p.gates + at;
    const math::gates::Lltm<T> sums{gate_at[0], gate_at[p.state], gate_at[2 * p.state]};
    const math::gates::Lltm<T> gate = math::gates::activate<T>(sums);
    const T cell = math::gates::next_cell(gate, p.cell_before[i]);
    gate_at[0] = gate.input;
    gate_at[p.state] = gate.output;
    gate_at[2 * p.state] = gate.candidate;
    p.cell[i] = cell;
    p.state_after[i] = math::gates::next_state(gate, cell);
  });
}

// The gradients of cells come from the step after, and go to the step before; those of gates are
// before activation.
template <typename T>
__global__ void lltm_backward_kernel(int64_t rows, int64_t state, const T* gates, const T* cells,
                                     const T* grad_output, const T* grad_state, T* grad_cells,
                                     T* grad_gates) {
  visit_states(rows, state, [&](int64_t i, int64_t at) {
    const math::gates::Lltm<T> gate{gates[at], gates[at + state], gates[at + 2 * state]};
    T grad_cell = grad_cells[i];
    const math::gates::Lltm<T> grad =
        math::gates::gradient<T>(gate, cells[i], grad_output[i] + grad_state[i], grad_cell);
    grad_cells[i] = grad_cell;
    grad_gates[at] = grad.input;
    grad_gates[at + state] = grad.output;
    grad_gates[at + 2 * state] = grad.candidate;
  });
}

}  // namespace

void lltm_forward(const Tensor& input, const Tensor& weights, const Tensor& bias, const Tensor& h,
                  const Tensor& c, Tensor& output, Tensor& cells, Tensor& gates) {
  const int64_t rows = h.size(0), state = h.size(1), inputs = input.size(-1);
  const int64_t steps = input.dim() == 2 ? 1 : input.size(0), size = rows * state;
  const Tensor x = wide(input), w = wide(weights), b = wide(bias), h0 = wide(h), c0 = wide(c);
  const Tensor sums = gates.view({steps * rows, 3 * state});
  addmm_out(sums, b, x.view({steps * rows, inputs}), w.narrow(1, state, inputs).t());
  const Tensor of_state = w.narrow(1, 0, state).t(), all = output.view({steps * rows, state});
  DETOPS_WIDE_SWITCH(x.scalar_type(), [&] {
    const scalar_t* before = elements(c0);
    scalar_t *gate = elements(sums), *cell = elements(cells), *after = elements(output);
    for (int64_t t = 0; t < steps; ++t) {
      const Tensor now = sums.narrow(0, t * rows, rows);
      addmm_out(now, now, t == 0 ? h0 : all.narrow(0, (t - 1) * rows, rows), of_state);
      const LltmParams<scalar_t> p{
          rows, state, before, gate + t * 3 * size, cell + t * size, after + t * size};
      launch(lltm_forward_kernel<scalar_t>, gate_launch(rows, state), p);
      before = p.cell;
    }
  });
}

void lltm_backward(const Tensor& grad_output, const std::optional<Tensor>& grad_h,
                   const Tensor& grad_c, const Tensor& input, const Tensor& weights,
                   const Tensor& h, const Tensor& c, const Tensor& output, const Tensor& cells,
                   const Tensor& gates, bool input_wanted, bool h_wanted, Tensor& to_input,
                   Tensor& to_weights, Tensor& to_bias, Tensor& to_h, Tensor& to_c) {
  const int64_t rows = h.size(0), state = h.size(1), inputs = input.size(-1);
  const int64_t steps = input.dim() == 2 ? 1 : input.size(0), size = rows * state;
  const Tensor g = wide(grad_output), x = wide(input), w = wide(weights), h0 = wide(h);
  const Tensor states = wide(output), cell_values = wide(cells), gate_values = wide(gates);
  const Tensor to_state = grad_h ? empty_like(h0).copy_(*grad_h) : zeros_like(h0);
  const Tensor to_cell = empty_like(h0).copy_(grad_c);
  const Tensor to_gates = empty_like(gate_values);
  const Tensor grads = to_gates.view({steps * rows, 3 * state});
  const Tensor of_state = w.narrow(1, 0, state);
  DETOPS_WIDE_SWITCH(x.scalar_type(), [&] {
    const scalar_t *gate = elements(gate_values), *cell = elements(cell_values),
                   *outer = elements(g);
    scalar_t* to_gate = elements(to_gates);
    for (int64_t t = steps - 1; t >= 0 && size > 0; --t) {
      launch(lltm_backward_kernel<scalar_t>, gate_launch(rows, state), rows, state,
             gate + t * 3 * size, cell + t * size, outer + t * size, to_state, to_cell,
             to_gate + t * 3 * size);
      if (t > 0 || h_wanted) mm_out(to_state, grads.narrow(0, t * rows, rows), of_state);
    }
  });
  // One product over all steps; the state before step t is that after step t - 1.
  const Tensor product = zeros_like(w), by_state = product.narrow(1, 0, state);
  const Tensor by_input = product.narrow(1, state, inputs);
  addmm_out(by_input, by_input, grads.t(), x.view({steps * rows, inputs}));
  if (steps > 0) addmm_out(by_state, by_state, grads.narrow(0, 0, rows).t(), h0);
  if (steps > 1) {
    const int64_t later = (steps - 1) * rows;
    addmm_out(by_state, by_state, grads.narrow(0, rows, later).t(),
              states.view({steps * rows, state}).narrow(0, 0, later));
  }
  if (input_wanted) to_input = mm(grads, w.narrow(1, state, inputs)).view(input.sizes());
  if (h_wanted) to_h = to_state;
  to_weights = product;
  to_bias = sum_of_rows(grads).view({3 * state});
  to_c = to_cell;
}

}  // namespace detops::cuda
