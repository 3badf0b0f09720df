// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One hidden layer with relu, computed row by
// row: its hidden units stay in registers and in one cache line. Vectors run over hidden units.

// Computes rows [begin, end).
template <typename T>
void mlp_forward(const MlpLayers<T>& m, const T* input, int64_t begin, int64_t end, T* hidden,
                 T* output) {
  const Vector<T> zero{};
  for (int64_t row = begin; row < end; ++row) {
    const T* x = input + row * m.inputs;
    T* out = output + row * m.outputs;
    for (int64_t o = 0; o < m.outputs; ++o) out[o] = m.output_bias[o];
    for (int64_t j = 0; j < m.hidden; j += kLanes<T>) {
      Vector<T> h = load(m.hidden_bias + j);
      for (int64_t k = 0; k < m.inputs; ++k) {
        h = fused(splat(x[k]), load(m.hidden_weights + k * m.padded + j), h);
      }
      h = h < zero ? zero : h;  // keeps NaN
      const int64_t n = m.hidden - j;
      store_first(hidden + row * m.hidden + j, h, n);
      // Zero the padding lanes: an infinite input times a zero weight is NaN there.
      h = lane_indices<T>() < lane_index_t<T>(n) ? h : zero;
      for (int64_t o = 0; o < m.outputs; ++o) {
        out[o] += sum_lanes<T>(h * load(m.output_weights + o * m.padded + j));
      }
    }
  }
}

// Adds the contributions of rows [begin, end) to the gradients of the parameters.
template <typename T>
void mlp_backward(const MlpLayers<T>& m, const T* input, const T* hidden, const T* grad,
                  int64_t begin, int64_t end, const MlpGradients<T>& to) {
  const Vector<T> zero{};
  for (int64_t row = begin; row < end; ++row) {
    const T *x = input + row * m.inputs, *g = grad + row * m.outputs;
    T* to_x = to.input == nullptr ? nullptr : to.input + row * m.inputs;
    for (int64_t k = 0; to_x != nullptr && k < m.inputs; ++k) to_x[k] = 0;
    for (int64_t o = 0; o < m.outputs; ++o) to.output_bias[o] += g[o];
    for (int64_t j = 0; j < m.hidden; j += kLanes<T>) {
      const Vector<T> h = load_first(hidden + row * m.hidden + j, m.hidden - j);
      Vector<T> to_h{};
      for (int64_t o = 0; o < m.outputs; ++o) {
        const int64_t at = o * m.padded + j;
        to_h = fused(splat(g[o]), load(m.output_weights + at), to_h);
        store(to.output_weights + at, fused(splat(g[o]), h, load(to.output_weights + at)));
      }
      to_h = h <= zero ? zero : to_h;  // the slope of relu, 0 at 0
      store(to.hidden_bias + j, load(to.hidden_bias + j) + to_h);
      for (int64_t k = 0; k < m.inputs; ++k) {
        T* w = to.hidden_weights + k * m.padded + j;
        store(w, fused(splat(x[k]), to_h, load(w)));
        if (to_x != nullptr)
          to_x[k] += sum_lanes<T>(to_h * load(m.hidden_weights + k * m.padded + j));
      }
    }
  }
}
