// SPDX-License-Identifier: MIT
#include "../../math/focal_loss.h"
#include "../common/vector.cuh"

namespace detops::cuda {
namespace {

// Losses; or, backward, what a gradient for each of them, or one for all, sends to the inputs.
template <bool backward, math::Focus focus, int n, typename T, typename A>
__global__ void focal_loss_kernel(math::Focal<A> f, const T* inputs, const T* targets,
                                  const T* grad, const A* grad_of_all, int64_t count, T* results) {
  const A of_all = grad_of_all == nullptr ? A(0) : *grad_of_all;
  for_each_vector<n>(count, [&](int64_t i, auto k) {
    const auto x = load<k>(inputs + i), t = load<k>(targets + i);
    Vector<T, k> each{}, result;
    if (backward && grad != nullptr) each = load<k>(grad + i);
    for (int j = 0; j < k; ++j) {
      const A input = A(x.at[j]), target = A(t.at[j]);
      const A outer = grad != nullptr ? A(each.at[j]) : of_all;
      result.at[j] = T(backward ? outer * math::focal::slope<focus>(f, input, target)
                                : math::focal::loss<focus>(f, input, target));
    }
    store(results + i, result);
  });
}

// The sum of all threads' numbers, in thread 0.
template <typename A>
__device__ A sum_of_block(A mine) {
  __shared__ A sums[kThreads / kWarp];
  Vector<A, 1> sum{{mine}};
  sum_over_lanes(sum, kWarp);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum.at[0];
  __syncthreads();
  A total = 0;
  for (const A& part : sums) total += part;
  return total;
}

// A sum for each block. The number of blocks follows from `count` alone, and so does the order.
template <math::Focus focus, int n, typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    focal_loss_sums_kernel(math::Focal<A> f, const T* inputs, const T* targets, int64_t count,
                           A* sums) {
  A sum = 0;
  for_each_vector<n>(count, [&](int64_t i, auto k) {
    const auto x = load<k>(inputs + i), t = load<k>(targets + i);
    for (int j = 0; j < k; ++j) sum += math::focal::loss<focus>(f, A(x.at[j]), A(t.at[j]));
  });
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// One block.
template <typename A>
__global__ void __launch_bounds__(kThreads) sum_kernel(const A* sums, int count, A* total) {
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) sum += sums[i];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *total = static_cast<A>(sum);
}

template <bool backward>
void launch_each(const Tensor& inputs, const Tensor& targets, const Tensor& grad,
                 const Tensor& grad_of_all, double alpha, double gamma, const Tensor& results) {
  const int64_t count = results.numel();
  const ScalarType type = results.scalar_type();
  const Tensor x = as_type(inputs, type).contiguous(), t = as_type(targets, type).contiguous();
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    const auto f = math::focal_of<A>(alpha, gamma);
    const scalar_t *from = elements(x), *target = elements(t), *each = elements(grad);
    scalar_t* to = elements(results);
    math::with_focus(math::focus_of(gamma), [&](auto focus) {
      with_vector<scalar_t>(0, {from, target, each, to}, [&](auto n) {
        launch(focal_loss_kernel<backward, decltype(focus)::value, n, scalar_t, A>,
               blocks_for(count, kThreads * n), f, from, target, each, grad_of_all, count, to);
      });
    });
  });
}

constexpr int kRows = kThreads / kWarp;  // of a block: a warp takes a row

// What the loss needs of a row, in all lanes; and its maximum.
template <typename T, typename A>
__device__ math::softmax_focal::Row<A> softmax_row(const T* x, int64_t classes, int64_t target,
                                                   int lane, A& m) {
  m = -std::numeric_limits<A>::infinity();
  for (int64_t j = lane; j < classes; j += kWarp) m = math::max(m, A(x[j]));
  for (int step = kWarp / 2; step > 0; step /= 2) {
    m = math::max(m, __shfl_xor_sync(0xffffffffu, m, step));
  }
  Vector<A, 1> rest{};
  for (int64_t j = lane; j < classes; j += kWarp) {
    if (j != target) rest.at[0] += math::exp(A(x[j]) - m);
  }
  sum_over_lanes(rest, kWarp);
  const A shift = A(x[target]) - m;
  return {shift, math::exp(shift), rest.at[0]};
}

// A warp takes a row: its loss or, backward, the gradients of its inputs.
template <bool backward, math::Focus focus, typename T, typename A = accumulate_t<T>>
__global__ void __launch_bounds__(kThreads)
    softmax_focal_kernel(math::SoftmaxFocal<A> f, const A* grad, const T* inputs,
                         const int64_t* targets, int64_t rows,
                         std::conditional_t<backward, T, A>* results) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t i = int64_t(blockIdx.x) * kRows + threadIdx.x / kWarp; i < rows;
       i += int64_t(gridDim.x) * kRows) {
    const int64_t target = targets[i];
    const T* x = inputs + i * f.classes;
    const bool counts = f.counts(target);
    math::softmax_focal::Row<A> row{};
    A m = 0, result = 0;
    if (counts) {
      row = softmax_row(x, f.classes, target, lane, m);
      const A scale = f.scale(target);
      result = backward ? -grad[i] * math::softmax_focal::slope<focus>(row, scale, f.gamma)
                        : math::softmax_focal::loss<focus>(row, scale, f.gamma);
    }
    if constexpr (backward) {
      for (int64_t j = lane; j < f.classes; j += kWarp) {
        const A power = !counts ? A(0) : j == target ? -row.rest : math::exp(A(x[j]) - m);
        results[i * f.classes + j] = T(result * power);
      }
    } else if (lane == 0) {
      results[i] = result;
    }
  }
}

template <bool backward>
void launch_rows(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                 const std::optional<Tensor>& weight, double alpha, double gamma,
                 const Tensor& results) {
  const Tensor x = inputs.contiguous(), t = as_type(targets, kLong).contiguous();
  const Tensor weights = wide(weight, x.scalar_type());
  DETOPS_FLOAT_SWITCH(x.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const math::SoftmaxFocal<A> f{A(alpha), A(gamma), elements(weights), x.size(1)};
    math::with_focus(math::focus_of(gamma), [&](auto focus) {
      launch(softmax_focal_kernel<backward, focus, scalar_t>, blocks_for(x.size(0), kRows), f, grad,
             x, t, x.size(0), results);
    });
  });
}

}  // namespace

void sigmoid_focal_loss_forward(const Tensor& inputs, const Tensor& targets, double alpha,
                                double gamma, Tensor& loss) {
  launch_each<false>(inputs, targets, {}, {}, alpha, gamma, loss);
}

void sigmoid_focal_loss_sum(const Tensor& inputs, const Tensor& targets, double alpha, double gamma,
                            Tensor& sum) {
  const int64_t count = inputs.numel();
  if (count == 0) {
    sum.zero_();
    return;
  }
  const ScalarType type = promoted_type(inputs.scalar_type(), targets.scalar_type());
  const Tensor x = as_type(inputs, type).contiguous(), t = as_type(targets, type).contiguous();
  constexpr unsigned kMost = 1024;  // blocks: enough for any GPU, and a second pass of no weight
  const unsigned blocks = std::min(blocks_for(count, 16 * kThreads), kMost);
  const Tensor sums = empty({blocks}, sum.options());
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    const auto f = math::focal_of<A>(alpha, gamma);
    const scalar_t *from = elements(x), *target = elements(t);
    math::with_focus(math::focus_of(gamma), [&](auto focus) {
      with_vector<scalar_t>(0, {from, target}, [&](auto n) {
        launch(focal_loss_sums_kernel<decltype(focus)::value, n, scalar_t, A>, blocks, f, from,
               target, count, sums);
      });
    });
    launch(sum_kernel<A>, 1, sums, blocks, sum);
  });
}

void sigmoid_focal_loss_backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                                 double alpha, double gamma, Tensor& to_inputs) {
  const ScalarType type = promoted_type(inputs.scalar_type(), targets.scalar_type());
  // One for all is never rounded to half precision: a mean's may be as small as 1 / count.
  const bool constant = is_constant(grad);
  const Tensor each = constant ? Tensor() : as_type(grad, type).contiguous();
  const Tensor of_all = constant ? wide(grad.as_strided({1}, {1}), type) : Tensor();
  launch_each<true>(inputs, targets, each, of_all, alpha, gamma, to_inputs);
}

void softmax_focal_loss_forward(const Tensor& inputs, const Tensor& targets,
                                const std::optional<Tensor>& weight, double alpha, double gamma,
                                Tensor& loss) {
  launch_rows<false>({}, inputs, targets, weight, alpha, gamma, loss);
}

void softmax_focal_loss_backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                                 const std::optional<Tensor>& weight, double alpha, double gamma,
                                 Tensor& to_inputs) {
  launch_rows<true>(wide(grad, inputs.scalar_type()), inputs, targets, weight, alpha, gamma,
                    to_inputs);
}

}  // namespace detops::cuda
