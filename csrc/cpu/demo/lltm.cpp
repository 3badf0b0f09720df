// SPDX-License-Identifier: MIT
#include "../../host/last_step.h"
#include "../../products.h"
#include "../common/host.h"

namespace detops::cpu {

// One step of an LLTM. A row is one sample of the batch.
template <typename T>
struct LltmStep {
  int64_t state;                        // H
  int64_t depth;                        // H, or 0 if `gates` already includes the state's part
  const T* packed;                      // the state's weights
  const T *state_before, *cell_before;  // [B, H]
  T* gates;                             // [B, 3H] in: the input's part; out: after activation
  T *cell, *state_after;                // [B, H]
};

template <typename T>
struct LltmBackwardStep {
  int64_t state;
  const T* packed;              // the state's weights, or nullptr to keep grad_state
  const T* gates;               // [B, 3H] after activation
  const T *cell, *grad_output;  // [B, H]
  T* grad_state;  // [B, H] in: from the next step, or nullptr; out: for the previous step
  T* grad_cell;   // [B, H] likewise
  T* grad_gates;  // [B, 3H] before activation
};

// out[r, c] = sum over k of left[r, k] right[k, c]. Each matrix has a row and a column stride. The
// column stride of `out` is 1. Either `right_column` is 1, or `left_depth` and `right_row` both
// are. With a single column, `right_column` may be anything.
struct Product {
  int64_t columns, depth;
  const float* left;
  int64_t left_row, left_depth;
  const float* right;
  int64_t right_row, right_column;
  float* out;
  int64_t out_row;
  bool add;  // to `out` instead of overwriting it
};
constexpr int64_t kProductDepth = 128;

}  // namespace detops::cpu

#define DETOPS_KERNELS "../demo/lltm.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// Rows of a batch are independent, so each thread runs some of them through all steps without
// synchronising. The sums of a row do not depend on the number of rows.
template <typename Rows>
void parallel_rows(int64_t rows, int64_t work_per_row, const Rows& visit) {
  constexpr int64_t kWork = 1 << 18;  // minimum number of multiplications per thread
  parallel_for(rows, grain_for(kWork, work_per_row), visit);
}

// Computes out [N, M] = left [N, K] right [K, M], or adds the product to `out`.
void multiply_into(const Tensor& left, const Tensor& right, const Tensor& out, bool add = false) {
  if (out.scalar_type() != kFloat) {
    add ? addmm_out(out, out, left, right) : mm_out(out, left, right);
    return;
  }
  parallel_rows(left.size(0), right.numel(), [&](int64_t begin, int64_t end) {
    DETOPS_IN_USE(product)({right.size(1), left.size(1), elements<float>(left), left.stride(0),
                            left.stride(1), elements<float>(right), right.stride(0),
                            right.stride(1), mutable_elements<float>(out), out.stride(0), add},
                           begin, end);
  });
}

// Computes out = [first, second] weights^T + bias. With batch rows in the lanes, weights are read
// in memory order. Fewer than 3 rows would leave most lanes empty.
void linear_into(const Tensor& first, const Tensor& second, const Tensor& weights,
                 const Tensor& bias, const Tensor& out) {
  const int64_t rows = first.size(0), first_depth = first.size(1), second_depth = second.size(1);
  const int64_t columns = weights.size(0), total_depth = first_depth + second_depth;
  if (rows < 3 || out.scalar_type() != kFloat) {
    const Tensor concatenated = empty({rows, total_depth}, first.options());
    concatenated.narrow(1, 0, first_depth).copy_(first);
    concatenated.narrow(1, first_depth, second_depth).copy_(second);
    addmm_out(out, bias, concatenated, weights.t());
    return;
  }
  const auto *x = elements<float>(first), *y = elements<float>(second),
             *w = elements<float>(weights);
  const float* bias_data = elements<float>(bias);
  float* out_data = mutable_elements<float>(out);
  Buffer<float> transposed(columns * rows);
  parallel_rows(columns, rows * total_depth, [&](int64_t begin, int64_t end) {
    float* sums = transposed.data();
    for (int64_t j = begin; j < end; ++j) std::fill_n(sums + j * rows, rows, bias_data[j]);
    const auto run = DETOPS_IN_USE(product);
    run({rows, first_depth, w, total_depth, 1, x, 1, first_depth, sums, rows, true}, begin, end);
    run({rows, second_depth, w + first_depth, total_depth, 1, y, 1, second_depth, sums, rows, true},
        begin, end);
    const auto transpose_back = DETOPS_IN_USE(transpose_matrix<float>);
    transpose_back(sums + begin * rows, rows, end - begin, rows, out_data + begin, columns);
  });
}

// Packs the state's weights [3H, ...] with `kernel`. Returns an empty buffer for a single step.
template <typename T, typename Pack>
Buffer<T> pack(const Tensor& weights, int64_t state, int64_t steps, const Pack& kernel) {
  const int64_t columns = DETOPS_IN_USE(kLltmColumns<T>);
  Buffer<T> packed(steps > 1 ? 3 * state * round_up(state, columns) : 0);
  if (steps > 1) kernel(weights.const_data_ptr<T>(), weights.stride(0), state, packed.data());
  return packed;
}

}  // namespace

void lltm_forward(const Tensor& input, const Tensor& weights, const Tensor& bias, const Tensor& h,
                  const Tensor& c, Tensor& output, Tensor& cells, Tensor& gates) {
  const int64_t rows = h.size(0), state = h.size(1), inputs = input.size(-1);
  const int64_t steps = input.dim() == 2 ? 1 : input.size(0);
  const Widened x(input), w(weights), b(bias), h0(h), c0(c);

  // With several steps, one product covers all inputs, and each step adds the state's part. A
  // single step uses one product for both.
  const bool packed = steps > 1;
  const Tensor sums = gates.view({steps * rows, 3 * state});
  if (packed) {
    multiply_into(x->view({steps * rows, inputs}), w->narrow(1, state, inputs).t(), sums.copy_(*b),
                  true);
  } else {
    linear_into(*h0, x->view({rows, inputs}), *w, *b, sums);
  }

  DETOPS_WIDE_SWITCH(x->scalar_type(), [&] {
    const auto *first_state = elements<scalar_t>(*h0), *first_cell = elements<scalar_t>(*c0);
    auto *gate = mutable_elements<scalar_t>(gates), *cell = mutable_elements<scalar_t>(cells);
    auto* out = mutable_elements<scalar_t>(output);
    const auto weight = pack<scalar_t>(*w, state, steps, DETOPS_IN_USE(lltm_pack<false, scalar_t>));
    const int64_t size = rows * state;
    const auto step = DETOPS_IN_USE(lltm_forward<scalar_t>);
    parallel_rows(rows, 3 * state * (packed ? steps * state : 8), [&](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < steps; ++t) {
        step({state, packed ? state : 0, weight.data(), t == 0 ? first_state : out + (t - 1) * size,
              t == 0 ? first_cell : cell + (t - 1) * size, gate + t * 3 * size, cell + t * size,
              out + t * size},
             begin, end);
      }
    });
  });
}

void lltm(const Tensor& input, const Tensor& weights, const Tensor& bias, const Tensor& h,
          const Tensor& c, Tensor& output, Tensor& last_h, Tensor& last_c, Tensor& cells,
          Tensor& gates) {
  if (input.size(0) > 0) lltm_forward(input, weights, bias, h, c, output, cells, gates);
  copy_last(output, h, last_h);
  copy_last(cells, c, last_c);
}

void lltm_backward(const Tensor& grad_output, const std::optional<Tensor>& grad_h,
                   const Tensor& grad_c, const Tensor& input, const Tensor& weights,
                   const Tensor& h, const Tensor& c, const Tensor& output, const Tensor& cells,
                   const Tensor& gates, bool input_wanted, bool h_wanted, Tensor& to_input,
                   Tensor& to_weights, Tensor& to_bias, Tensor& to_h, Tensor& to_c) {
  const int64_t rows = h.size(0), state = h.size(1), inputs = input.size(-1);
  const int64_t steps = input.dim() == 2 ? 1 : input.size(0);
  const Tensor dense = to_memory_format(grad_output, MemoryFormat::Contiguous);
  const Widened g(dense), x(input), w(weights), h0(h);
  const Widened states(output), cell_values(cells), gate_values(gates);
  // Gradients of state and cell that propagate from step to step.
  Tensor to_state;
  if (grad_h) {
    to_state = empty_like(*h0).copy_(*grad_h);
  } else if (steps != 1) {
    to_state = empty_like(*h0).zero_();
  }
  assign(to_c, grad_c);
  const Tensor to_gates = empty_like(*gate_values);
  const bool packed = steps > 1;
  if (output.numel() > 0) {
    DETOPS_WIDE_SWITCH(x->scalar_type(), [&] {
      const auto *gate = elements<scalar_t>(*gate_values), *cell = elements<scalar_t>(*cell_values);
      const auto* upstream = elements<scalar_t>(*g);
      auto* state_grad = to_state.defined() ? mutable_elements<scalar_t>(to_state) : nullptr;
      auto *gate_grad = mutable_elements<scalar_t>(to_gates),
           *cell_grad = mutable_elements<scalar_t>(to_c);
      const auto weight =
          pack<scalar_t>(*w, state, steps, DETOPS_IN_USE(lltm_pack<true, scalar_t>));
      const int64_t size = rows * state;
      const auto step = DETOPS_IN_USE(lltm_backward<scalar_t>);
      parallel_rows(
          rows, 3 * state * (packed ? steps * state : 8), [&](int64_t begin, int64_t end) {
            for (int64_t t = steps - 1; t >= 0; --t) {
              step({state, packed ? weight.data() : nullptr, gate + t * 3 * size, cell + t * size,
                    upstream + t * size, state_grad, cell_grad, gate_grad + t * 3 * size},
                   begin, end);
            }
          });
    });
  }
  const Tensor grads = to_gates.view({steps * rows, 3 * state}), left = grads.t();
  // Products over all steps. The state before step t is the state after step t - 1.
  const Tensor state_weights_grad = to_weights.narrow(1, 0, state);
  multiply_into(left, x->view({steps * rows, inputs}), to_weights.narrow(1, state, inputs));
  if (steps == 0) {
    state_weights_grad.zero_();
  } else if (steps == 1) {
    multiply_into(left, *h0, state_weights_grad);
    if (h_wanted) multiply_into(grads, w->narrow(1, 0, state), to_h);
  } else {
    const int64_t later = (steps - 1) * rows;
    multiply_into(left.narrow(1, rows, later),
                  states->view({steps * rows, state}).narrow(0, 0, later), state_weights_grad);
    multiply_into(left.narrow(1, 0, rows), *h0, state_weights_grad, true);
  }
  if (steps != 1 && h_wanted) to_h = to_state;
  if (input_wanted) {
    multiply_into(grads, w->narrow(1, state, inputs), to_input.view({steps * rows, inputs}));
  }
  DETOPS_WIDE_SWITCH(grads.scalar_type(), [&] {
    DETOPS_IN_USE(sum_rows<scalar_t>)
    (elements<scalar_t>(grads), steps * rows, 3 * state, mutable_elements<scalar_t>(to_bias));
  });
}

}  // namespace detops::cpu
