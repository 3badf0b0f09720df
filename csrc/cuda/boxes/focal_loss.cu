// SPDX-License-Identifier: MIT
#include "../../math/focal_loss.h"
#include "../common/vector.cuh"

namespace detops::cuda {
namespace {

// Computes losses or, if `backward`, the gradients of the inputs. The losses have a gradient each
// in `grad`, or if that is null, one for all in `common_grad`.
template <bool backward, math::Focus focus, int n, typename T, typename A>
__global__ void focal_loss_kernel(math::FocalParams<A> f, const T* inputs, const T* targets,
                                  const T* grad, const A* common_grad, int64_t count, T* results) {
  const A default_grad = common_grad == nullptr ? A(0) : *common_grad;
  for_each_vector<n>(count, [&](int64_t i, auto k) {
    const auto x = load<k>(inputs + i), t = load<k>(targets + i);
    Vector<T, k> grads{}, result;
    if (backward && grad != nullptr) grads = load<k>(grad + i);
    for (int j = 0; j < k; ++j) {
      const A input = A(x.at[j]), target = A(t.at[j]);
      const A upstream = grad != nullptr ? A(grads.at[j]) : default_grad;
      result.at[j] = T(backward ? upstream * math::focal::slope<focus>(f, input, target)
                                : math::focal::loss<focus>(f, input, target));
    }
    store(results + i, result);
  });
}

// Returns the sum of `value` over all threads of the block.
template <typename A>
__device__ A block_sum(A value) {
  __shared__ A sums[kThreads / kWarp];
  Vector<A, 1> sum{{value}};
  sum_over_lanes(sum, kWarp);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum.at[0];
  __syncthreads();
  A total = 0;
  for (const A& part : sums) total += part;
  return total;
}

// Computes one sum per block. The number of blocks depends only on `count`, so the order of
// summation is the same on every GPU.
template <math::Focus focus, int n, typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    focal_loss_sums_kernel(math::FocalParams<A> f, const T* inputs, const T* targets, int64_t count,
                           A* sums) {
  A sum = 0;
  for_each_vector<n>(count, [&](int64_t i, auto k) {
    const auto x = load<k>(inputs + i), t = load<k>(targets + i);
    for (int j = 0; j < k; ++j) sum += math::focal::loss<focus>(f, A(x.at[j]), A(t.at[j]));
  });
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// Adds the sums of all blocks. Launched with one block.
template <typename A>
__global__ void __launch_bounds__(kThreads) sum_kernel(const A* sums, int count, A* total) {
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) sum += sums[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total = static_cast<A>(sum);
}

template <bool backward>
void launch_elementwise(const Tensor& inputs, const Tensor& targets, const Tensor& grad,
                        const Tensor& common_grad, double alpha, double gamma,
                        const Tensor& results) {
  const int64_t count = results.numel();
  const ScalarType type = results.scalar_type();
  const Tensor x = inputs.to(type).contiguous(), t = targets.to(type).contiguous();
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    const auto f = math::focal_params<A>(alpha, gamma);
    const scalar_t *from = elements(x), *target = elements(t), *grads = elements(grad);
    scalar_t* to = elements(results);
    math::with_focus(gamma, [&](auto focus) {
      with_vector<scalar_t>(0, {from, target, grads, to}, [&](auto n) {
        launch(focal_loss_kernel<backward, decltype(focus)::value, n, scalar_t, A>,
               blocks_for(count, kThreads * n), f, from, target, grads, common_grad, count, to);
      });
    });
  });
}

// A row of logits, dealt in turn to `lanes` lanes of a warp, a power of two. Each lane holds its
// first kCached logits in registers, so that most rows are read once. With fewer lanes, a warp
// handles more rows, and computes the terms that occur once per row for all of them at once.
template <typename T, typename A>
struct Logits {
  static constexpr int kCached = 16;
  const T* first;  // of this lane
  int lanes, count;
  A cached[kCached];

  __device__ Logits(const T* row, int classes, int lane, int lanes)
      : first(row + lane), lanes(lanes), count((classes - lane + lanes - 1) / lanes) {
    for (int i = 0; i < kCached; ++i) cached[i] = i < count ? A(first[i * lanes]) : A(0);
  }

  // Calls visit(i, logit) for each logit of this lane.
  template <typename Visit>
  __device__ void visit(const Visit& visit) const {
    for (int i = 0; i < kCached; ++i) {
      if (i < count) visit(i, cached[i]);
    }
    for (int i = kCached; i < count; ++i) visit(i, A(first[i * lanes]));
  }
};

// Returns the terms of a row that the loss is computed from, in all lanes of the row, and stores
// its maximum in `max_logit`. All threads of a warp must call it, whichever rows they handle.
template <typename T, typename A>
__device__ math::softmax_focal::Row<A> softmax_row(const Logits<T, A>& logits, A target_logit,
                                                   int target, A& max_logit) {
  max_logit = -std::numeric_limits<A>::infinity();
  logits.visit([&](int, A x) { max_logit = math::max(max_logit, x); });
  for (int step = logits.lanes / 2; step > 0; step /= 2) {
    max_logit = math::max(max_logit, __shfl_xor_sync(0xffffffffu, max_logit, step));
  }
  Vector<A, 1> rest{};
  logits.visit([&](int i, A x) { rest.at[0] += i == target ? A(0) : math::exp(x - max_logit); });
  sum_over_lanes(rest, logits.lanes);
  return {target_logit - max_logit, math::exp(target_logit - max_logit), rest.at[0]};
}

// Computes losses or, if `backward`, the gradients of the inputs.
template <bool backward, math::Focus focus, typename T, typename A = accumulate_t<T>>
__global__ void __launch_bounds__(kThreads)
    softmax_focal_kernel(math::SoftmaxFocal<A> f, const A* grad, const T* inputs,
                         const int64_t* targets, int64_t rows, int lanes,
                         std::conditional_t<backward, T, A>* results) {
  const int lane = static_cast<int>(threadIdx.x) % lanes, block_rows = kThreads / lanes;
  for (int64_t first = int64_t(blockIdx.x) * block_rows; first < rows;
       first += int64_t(gridDim.x) * block_rows) {
    const int64_t i = first + threadIdx.x / lanes;
    const int64_t target = i < rows ? targets[i] : -1;
    const bool counts = f.is_class(target);
    const T* x = inputs + i * f.classes;
    const A target_logit = counts ? A(x[target]) : A(0);
    const Logits<T, A> logits(x, counts ? static_cast<int>(f.classes) : 0, lane, lanes);
    // Index of the target among this lane's logits, or -1.
    const int target_index =
        counts && target % lanes == lane ? static_cast<int>(target / lanes) : -1;
    A max_logit, result = 0;
    const auto row = softmax_row(logits, target_logit, target_index, max_logit);
    if (counts) {
      const A scale = f.scale(target);
      result = backward ? -grad[i] * math::softmax_focal::slope<focus>(row, scale, f.gamma)
                        : math::softmax_focal::loss<focus>(row, scale, f.gamma);
    }
    if (i >= rows) continue;
    if constexpr (!backward) {
      if (lane == 0) results[i] = result;
    } else {
      T* to = results + i * f.classes + lane;
      logits.visit([&](int k, A logit) {
        to[k * lanes] =
            T(result * (k == target_index ? -row.exp_others : math::exp(logit - max_logit)));
      });
      for (int64_t j = lane; !counts && j < f.classes; j += lanes) to[j - lane] = T(0);
    }
  }
}

template <bool backward>
void launch_softmax(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                    const std::optional<Tensor>& weight, double alpha, double gamma,
                    const Tensor& results) {
  const Tensor x = inputs.contiguous(), t = targets.to(kLong).contiguous();
  const Tensor weights = wide(weight, x.scalar_type());
  DETOPS_FLOAT_SWITCH(x.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const math::SoftmaxFocal<A> f{A(alpha), A(gamma), elements(weights), x.size(1)};
    math::with_focus(gamma, [&](auto focus) {
      const int lanes = lanes_for_runs(narrow(f.classes), Logits<scalar_t, A>::kCached);
      launch(softmax_focal_kernel<backward, focus, scalar_t>,
             blocks_for(x.size(0), kThreads / lanes), f, grad, x, t, x.size(0), lanes, results);
    });
  });
}

}  // namespace

void sigmoid_focal_loss_forward(const Tensor& inputs, const Tensor& targets, double alpha,
                                double gamma, Tensor& loss) {
  launch_elementwise<false>(inputs, targets, {}, {}, alpha, gamma, loss);
}

void sigmoid_focal_loss_sum(const Tensor& inputs, const Tensor& targets, double alpha, double gamma,
                            Tensor& sum) {
  const int64_t count = inputs.numel();
  if (count == 0) {
    sum.zero_();
    return;
  }
  const ScalarType type = promote_types(inputs.scalar_type(), targets.scalar_type());
  const Tensor x = inputs.to(type).contiguous(), t = targets.to(type).contiguous();
  constexpr unsigned kMaxBlocks = 1024;  // enough for any GPU, with a negligible second pass
  const unsigned blocks = std::min(blocks_for(count, 16 * kThreads), kMaxBlocks);
  const Tensor sums = empty({blocks}, sum.options());
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    const auto f = math::focal_params<A>(alpha, gamma);
    const scalar_t *from = elements(x), *target = elements(t);
    math::with_focus(gamma, [&](auto focus) {
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
  const ScalarType type = promote_types(inputs.scalar_type(), targets.scalar_type());
  // One gradient for all losses is never rounded to half precision: that of a mean may be as small
  // as 1 / count.
  const bool constant = is_constant(grad);
  const Tensor grads = constant ? Tensor() : grad.to(type).contiguous();
  const Tensor common_grad = constant ? wide(grad.as_strided({1}, {1}), type) : Tensor();
  launch_elementwise<true>(inputs, targets, grads, common_grad, alpha, gamma, to_inputs);
}

void softmax_focal_loss_forward(const Tensor& inputs, const Tensor& targets,
                                const std::optional<Tensor>& weight, double alpha, double gamma,
                                Tensor& loss) {
  launch_softmax<false>({}, inputs, targets, weight, alpha, gamma, loss);
}

void softmax_focal_loss_backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                                 const std::optional<Tensor>& weight, double alpha, double gamma,
                                 Tensor& to_inputs) {
  launch_softmax<true>(wide(grad, inputs.scalar_type()), inputs, targets, weight, alpha, gamma,
                       to_inputs);
}

}  // namespace detops::cuda
