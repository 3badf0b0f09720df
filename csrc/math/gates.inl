// SPDX-License-Identifier: MIT
// See host_device.h.

// The cell of the PyTorch tutorial "Custom C++ and CUDA Extensions" (LLTM): an LSTM without a
// forget gate and with elu for the candidate,
//   c' = c + elu(candidate) sigmoid(input),  h' = tanh(c') sigmoid(output).
namespace gates {

template <typename V>
struct Lltm {
  V input, output, candidate;
};

template <typename T, typename V>
DETOPS_HD V sigmoid(V x) {
  return T(1) / (T(1) + exp(-x));
}

// Applies the activation functions.
template <typename T, typename V>
DETOPS_HD Lltm<V> activate(const Lltm<V>& x) {
  return {sigmoid<T>(x.input), sigmoid<T>(x.output),
          x.candidate > T(0) ? x.candidate : expm1(x.candidate)};
}

template <typename V>
DETOPS_HD V next_cell(const Lltm<V>& gate, V cell) {
  return cell + gate.candidate * gate.input;
}

template <typename V>
DETOPS_HD V next_state(const Lltm<V>& gate, V next_cell) {
  return tanh(next_cell) * gate.output;
}

// Maps the gradients of h' and c' to those of the gates before their activation. `grad_cell` holds
// the gradient of c' and is overwritten with that of c. The derivatives follow from the values:
// s (1 - s), 1 - t^2, elu + 1.
template <typename T, typename V>
DETOPS_HD Lltm<V> gradient(const Lltm<V>& gate, V next_cell, V grad_state, V& grad_cell) {
  const V t = tanh(next_cell);
  grad_cell += grad_state * gate.output * (T(1) - t * t);
  return {grad_cell * gate.candidate * gate.input * (T(1) - gate.input),
          grad_state * t * gate.output * (T(1) - gate.output),
          gate.candidate > T(0) ? grad_cell * gate.input
                                : grad_cell * gate.input * (gate.candidate + T(1))};
}

}  // namespace gates
