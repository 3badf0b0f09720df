// SPDX-License-Identifier: MIT
#include "../../host/mlp_products.h"
#include "../common/host.h"

namespace detops::cpu {

// Parameters of an MLP. Vectors of hidden units are padded with zeros to whole vectors.
template <typename T>
struct MlpLayers {
  int64_t inputs, hidden, padded, outputs;
  const T* hidden_weights;  // [inputs, padded]
  const T* hidden_bias;     // [padded]
  const T* output_weights;  // [outputs, padded]
  const T* output_bias;     // [outputs]
};

// Gradients in the same layout. `input` is [rows, inputs], or nullptr if it is not wanted.
template <typename T>
struct MlpGradients {
  T *input, *hidden_weights, *hidden_bias, *output_weights, *output_bias;
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../demo/mlp.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// Layers with more weights than L1 holds use matrix products instead of the fused kernel.
constexpr int64_t kFusedWeights = 4096;
constexpr int64_t kMaxLanes = 16;
// Rows per partial sum of the gradients. Sums do not depend on the number of threads, and their
// rounding error depends little on the number of rows.
constexpr int64_t kChunk = 512;

// Returns the number of hidden units with padding.
int64_t padded_units(int64_t units) { return round_up(units, kMaxLanes); }

// Returns whether the layers fit the fused kernel.
bool fits_fused(const Tensor& hidden_weights, const Tensor& output_weights) {
  const int64_t rows = hidden_weights.size(1) + output_weights.size(0) + 1;
  return padded_units(hidden_weights.size(0)) * rows <= kFusedWeights;
}

// Owns the memory that it points to, except for the bias of the outputs.
template <typename T>
struct Layers : MlpLayers<T> {
  Buffer<T> memory;

  Layers(const Tensor& hidden_weights, const T* hidden_bias, const Tensor& output_weights,
         const T* output_bias) {
    const int64_t inputs = hidden_weights.size(1), hidden = hidden_weights.size(0);
    const int64_t outputs = output_weights.size(0), padded = padded_units(hidden);
    T* to = memory.reserve(padded * (inputs + 1 + outputs));
    std::fill_n(to, padded * (inputs + 1 + outputs), T(0));
    const T* w = hidden_weights.const_data_ptr<T>();
    for (int64_t j = 0; j < hidden; ++j) {
      for (int64_t k = 0; k < inputs; ++k) to[k * padded + j] = w[j * inputs + k];
    }
    T* bias = to + inputs * padded;
    if (hidden_bias != nullptr) std::copy_n(hidden_bias, hidden, bias);
    const T* v = output_weights.const_data_ptr<T>();
    for (int64_t o = 0; o < outputs; ++o) {
      std::copy_n(v + o * hidden, hidden, bias + (1 + o) * padded);
    }
    MlpLayers<T>::operator=(
        {inputs, hidden, padded, outputs, to, bias, bias + padded, output_bias});
  }
};

template <typename T>
void fused_backward(const MlpLayers<T>& m, const T* input, const T* hidden, const T* grad,
                    int64_t rows, T* to_input, const std::array<T*, 4>& to) {
  // Gradients of a chunk: hidden weights [I, P], hidden bias [P], output weights [O, P], output
  // bias [O].
  const int64_t size = m.padded * (m.inputs + 1 + m.outputs) + m.outputs;
  const int64_t chunks = std::max<int64_t>(1, divide_up(rows, kChunk));
  Buffer<T> sums(chunks * size);
  std::fill_n(sums.data(), chunks * size, T(0));
  parallel_for(chunks, 1, [&](int64_t chunk, int64_t end) {
    for (; chunk < end; ++chunk) {
      T* w = sums.data() + chunk * size;
      T *b = w + m.inputs * m.padded, *v = b + m.padded, *c = v + m.outputs * m.padded;
      DETOPS_IN_USE(mlp_backward<T>)(m, input, hidden, grad, chunk * kChunk,
                                     std::min(rows, (chunk + 1) * kChunk), {to_input, w, b, v, c});
    }
  });
  T* total = sums.data();
  for (int64_t chunk = 1; chunk < chunks; ++chunk) {
    for (int64_t i = 0; i < size; ++i) total[i] += total[chunk * size + i];
  }
  for (int64_t j = 0; j < m.hidden; ++j) {
    for (int64_t k = 0; k < m.inputs; ++k) to[0][j * m.inputs + k] = total[k * m.padded + j];
  }
  const T* bias = total + m.inputs * m.padded;
  std::copy_n(bias, m.hidden, to[1]);
  for (int64_t o = 0; o < m.outputs; ++o) {
    std::copy_n(bias + (1 + o) * m.padded, m.hidden, to[2] + o * m.hidden);
  }
  std::copy_n(bias + (1 + m.outputs) * m.padded, m.outputs, to[3]);
}

}  // namespace

void mlp_forward(const Tensor& input, const Tensor& hidden_weights, const Tensor& hidden_bias,
                 const Tensor& output_weights, const Tensor& output_bias, Tensor& output,
                 Tensor& hidden) {
  const Widened x(input), w(hidden_weights), b(hidden_bias), v(output_weights), c(output_bias);
  if (!fits_fused(*w, *v)) {
    mlp_products(*x, *w, *b, *v, *c, output, hidden);
    return;
  }
  DETOPS_WIDE_SWITCH(x->scalar_type(), [&] {
    const Layers<scalar_t> layers(*w, b->const_data_ptr<scalar_t>(), *v,
                                  c->const_data_ptr<scalar_t>());
    const scalar_t* in = x->const_data_ptr<scalar_t>();
    scalar_t *h = hidden.mutable_data_ptr<scalar_t>(), *out = output.mutable_data_ptr<scalar_t>();
    parallel_for(x->size(0), kChunk, [&](int64_t begin, int64_t end) {
      DETOPS_IN_USE(mlp_forward<scalar_t>)(layers, in, begin, end, h, out);
    });
  });
}

void mlp_backward(const Tensor& grad, const Tensor& input, const Tensor& hidden,
                  const Tensor& hidden_weights, const Tensor& output_weights, bool input_wanted,
                  Tensor& to_input, Tensor& to_hidden_weights, Tensor& to_hidden_bias,
                  Tensor& to_output_weights, Tensor& to_output_bias) {
  const Tensor dense = to_memory_format(grad, MemoryFormat::Contiguous);
  const Widened g(dense), x(input), h(hidden), w(hidden_weights), v(output_weights);
  if (!fits_fused(*w, *v)) {
    const Tensor to_hidden = empty_like(*h);
    mm_out(to_hidden, *g, *v);
    DETOPS_WIDE_SWITCH(x->scalar_type(), [&] {
      scalar_t* to = to_hidden.mutable_data_ptr<scalar_t>();
      const scalar_t* unit = h->const_data_ptr<scalar_t>();
      for (int64_t i = 0; i < h->numel(); ++i) to[i] = unit[i] > 0 ? to[i] : scalar_t(0);
    });
    mlp_gradients(*g, to_hidden, *x, *h, *w, input_wanted, to_input, to_hidden_weights,
                  to_hidden_bias, to_output_weights, to_output_bias);
    return;
  }
  Tensor* const to[] = {&to_input, &to_hidden_weights, &to_hidden_bias, &to_output_weights,
                        &to_output_bias};
  DETOPS_WIDE_SWITCH(x->scalar_type(), [&] {
    const auto data = [&](int64_t k) { return to[k]->mutable_data_ptr<scalar_t>(); };
    const Layers<scalar_t> layers(*w, nullptr, *v, nullptr);
    fused_backward<scalar_t>(layers, x->const_data_ptr<scalar_t>(), h->const_data_ptr<scalar_t>(),
                             g->const_data_ptr<scalar_t>(), x->size(0),
                             input_wanted ? data(0) : nullptr,
                             {data(1), data(2), data(3), data(4)});
  });
}

}  // namespace detops::cpu
