// SPDX-License-Identifier: MIT
#include "../../host/mlp_products.h"
#include "../common/launch.cuh"

// A small layer is one kernel, with a thread per row and the weights in shared memory. A larger one
// uses matrix products. Weight gradients always do: cuBLAS sums over rows in a fixed order, while a
// kernel of our own would need atomics or a second pass.
namespace detops::cuda {
namespace {

constexpr int64_t kFusedWeights = 4096;

template <typename T>
struct MlpParams {
  int64_t rows;
  int inputs, hidden, outputs;
  const T* input;           // [B, I]
  const T* hidden_weights;  // [H, I]
  const T* hidden_bias;     // [H]
  const T* output_weights;  // [O, H]
  const T* output_bias;     // [O]
  T* hidden_values;         // [B, H]
  T* output;                // [B, O]
};

template <typename T>
__global__ void mlp_forward_kernel(MlpParams<T> p) {
  DETOPS_DYNAMIC_SHARED(memory);
  T* w = reinterpret_cast<T*>(memory);
  T *b = w + p.hidden * p.inputs, *v = b + p.hidden, *c = v + p.outputs * p.hidden;
  for (int i = threadIdx.x; i < p.hidden * p.inputs; i += blockDim.x) w[i] = p.hidden_weights[i];
  for (int i = threadIdx.x; i < p.hidden; i += blockDim.x) b[i] = p.hidden_bias[i];
  for (int i = threadIdx.x; i < p.outputs * p.hidden; i += blockDim.x) v[i] = p.output_weights[i];
  for (int i = threadIdx.x; i < p.outputs; i += blockDim.x) c[i] = p.output_bias[i];
  __syncthreads();
  DETOPS_FOR_EACH(row, p.rows) {
    const T* x = p.input + row * p.inputs;
    T *h = p.hidden_values + row * p.hidden, *out = p.output + row * p.outputs;
    for (int j = 0; j < p.hidden; ++j) {
      T sum = b[j];
      for (int k = 0; k < p.inputs; ++k) sum += x[k] * w[j * p.inputs + k];
      h[j] = sum < T(0) ? T(0) : sum;  // NaN stays
    }
    for (int o = 0; o < p.outputs; ++o) {
      T sum = c[o];
      for (int j = 0; j < p.hidden; ++j) sum += h[j] * v[o * p.hidden + j];
      out[o] = sum;
    }
  }
}

bool fits_fused(const Tensor& w, const Tensor& v) {
  return (w.size(0) + 1) * (w.size(1) + v.size(0) + 1) <= kFusedWeights;
}

}  // namespace

void mlp_forward(const Tensor& input, const Tensor& hidden_weights, const Tensor& hidden_bias,
                 const Tensor& output_weights, const Tensor& output_bias, Tensor& output,
                 Tensor& hidden) {
  const Tensor x = wide(input), w = wide(hidden_weights), b = wide(hidden_bias);
  const Tensor v = wide(output_weights), c = wide(output_bias);
  if (!fits_fused(w, v)) {
    mlp_products(x, w, b, v, c, output, hidden);
    return;
  }
  DETOPS_WIDE_SWITCH(x.scalar_type(), [&] {
    const MlpParams<scalar_t> p{x.size(0),   int(x.size(1)),   int(w.size(0)),  int(v.size(0)),
                                elements(x), elements(w),      elements(b),     elements(v),
                                elements(c), elements(hidden), elements(output)};
    const size_t weights = w.numel() + b.numel() + v.numel() + c.numel();
    launch(mlp_forward_kernel<scalar_t>, {blocks_for(p.rows), kThreads, weights * sizeof(scalar_t)},
           p);
  });
}

void mlp_backward(const Tensor& grad, const Tensor& input, const Tensor& hidden,
                  const Tensor& hidden_weights, const Tensor& output_weights, bool input_wanted,
                  Tensor& to_input, Tensor& to_hidden_weights, Tensor& to_hidden_bias,
                  Tensor& to_output_weights, Tensor& to_output_bias) {
  const Tensor g = wide(grad), x = wide(input), h = wide(hidden);
  const Tensor w = wide(hidden_weights), v = wide(output_weights);
  const Tensor to_hidden = empty_like(h);  // before relu
  const int units = static_cast<int>(h.size(1)), outputs = static_cast<int>(v.size(0));
  DETOPS_WIDE_SWITCH(x.scalar_type(), [&] {
    const scalar_t *upstream = elements(g), *weights = elements(v), *unit = elements(h);
    scalar_t* to = elements(to_hidden);
    for_each(h.numel(), [=] __device__(int64_t i) {
      const int64_t row = i / units, j = i % units;
      scalar_t sum = 0;
      for (int o = 0; o < outputs; ++o) sum += upstream[row * outputs + o] * weights[o * units + j];
      to[i] = unit[i] <= scalar_t(0) ? scalar_t(0) : sum;
    });
  });
  mlp_gradients(g, to_hidden, x, h, w, input_wanted, to_input, to_hidden_weights, to_hidden_bias,
                to_output_weights, to_output_bias);
}

}  // namespace detops::cuda
